//===- CalibrationTest.cpp - constants and their file ---------------------===//
//
// Part of mla.
//
//===----------------------------------------------------------------------===//
#include "mla/CostModel/CostModel.h"
#include "mla/Support/Json.h"
#include <algorithm>
#include <gtest/gtest.h>

using namespace mla;
using namespace mla::cost;

namespace {

/// A file with all constants as they begin, but for those in `changes`; "" leaves
/// one out.
std::string fileWith(const std::map<std::string, std::string> &changes,
                     const std::string &before = "\"version\": 1, ") {
  std::string text;
  std::map<std::string, std::string> rest = changes;
  for (const Constant &c : constants()) {
    std::string name(c.name), value = std::to_string(c.start);
    if (c.start < 1e-3)
      value = std::to_string(c.start * 1e9) + "e-9";
    if (auto found = rest.find(name); found != rest.end()) {
      value = found->second;
      rest.erase(found);
      if (value.empty())
        continue;
    }
    text += (text.empty() ? "\"" : ", \"") + name + "\": " + value;
  }
  for (const auto &[name, value] : rest)
    text += ", \"" + name + "\": " + value;
  return "{" + before + "\"constants\": {" + text + "}}";
}

std::string messageOf(const std::string &text) {
  Result<Calibration> parsed = Calibration::parse(text, "kernels.json");
  return parsed.ok() ? "" : parsed.status().message();
}

TEST(Calibration, ConstantsAreSortedAndPossible) {
  std::string before;
  for (const Constant &c : constants()) {
    EXPECT_LT(before, std::string(c.name));
    before = c.name;
    EXPECT_LE(c.low, c.start) << c.name;
    EXPECT_LE(c.start, c.high) << c.name;
    EXPECT_LE(0, c.low) << c.name;
    EXPECT_FALSE(c.unit.empty()) << c.name;
  }
}

TEST(Calibration, ReadsItsFile) {
  Result<Calibration> parsed =
      Calibration::parse(fileWith({{"rows.latency", "1.25e-6"}}), "f");
  ASSERT_TRUE(parsed.ok()) << parsed.status().message();
  EXPECT_EQ(parsed->values.size(), constants().size());
  EXPECT_EQ(parsed->values.at("rows.latency"), 1.25e-6);
}

TEST(Calibration, ShippedIsTheFile) {
  Result<std::string> text = readFile(MLA_CALIBRATION);
  ASSERT_TRUE(text.ok());
  Result<Calibration> parsed = Calibration::parse(*text, MLA_CALIBRATION);
  ASSERT_TRUE(parsed.ok()) << parsed.status().message();
  EXPECT_EQ(parsed->values, Calibration::shipped().values);
  EXPECT_EQ(parsed->values.size(), constants().size());
}

TEST(Calibration, RefusesMistakes) {
  EXPECT_NE(messageOf("{"), "");
  EXPECT_NE(messageOf("[]"), "");
  EXPECT_NE(messageOf("{\"version\": 1}"), "");
  EXPECT_NE(messageOf("{\"version\": 1, \"constants\": [1, 2]}"), "");
  EXPECT_NE(messageOf(fileWith({}, "\"version\": 2, ")).find("/version"),
            std::string::npos);
  EXPECT_NE(messageOf(fileWith({}, "")).find("/version"), std::string::npos);
  EXPECT_NE(messageOf(fileWith({{"rows.latency", ""}})).find("rows.latency"),
            std::string::npos);
  EXPECT_NE(messageOf(fileWith({{"rows.latency", "-1e-6"}}))
                .find("/constants/rows.latency"),
            std::string::npos);
  EXPECT_NE(messageOf(fileWith({{"overlap.power", "1e300"}}))
                .find("overlap.power"),
            std::string::npos);
  EXPECT_NE(messageOf(fileWith({{"rows.latency", "\"fast\""}}))
                .find("rows.latency"),
            std::string::npos);
  EXPECT_NE(messageOf(fileWith({{"rows.delay", "1"}})).find("rows.delay"),
            std::string::npos);
}

TEST(Calibration, EveryMistakeIsALine) {
  std::string message = messageOf(
      fileWith({{"rows.latency", "-1"}, {"overlap.power", ""}, {"x", "1"}}));
  EXPECT_EQ(std::count(message.begin(), message.end(), '\n'), 2) << message;
}

} // namespace
