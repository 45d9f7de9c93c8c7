//===- MistakesTest.cpp - each mistake of a machine file --------------------===//
//
// Part of mla. A shipped file with one thing changed, and the one line that is
// said about it.
//
//===----------------------------------------------------------------------===//
#include "mla/Machine/Machine.h"
#include <gtest/gtest.h>

using namespace mla;

namespace {

/// What parsing says when `from` (there once) is `to` in the text of `name`.
std::string said(const std::string &name, const std::string &from,
                 const std::string &to) {
  std::string text = findMachine(name)->json();
  size_t at = text.find(from);
  if (at == std::string::npos || text.find(from, at + 1) != std::string::npos)
    return "the test is wrong: " + from;
  text.replace(at, from.size(), to);
  Result<Machine> machine = Machine::parse(text, "m");
  return machine.ok() ? "ok" : machine.status().message();
}

struct Case {
  std::string name, from, to, message;
};

TEST(Mistakes, EachIsOneLine) {
  const std::string rtx = "rtx-pro-6000x8-pcie5", one = "h200x1",
                    two = "h200x2";
  const Case cases[] = {
      {one, "\"version\": 1", "\"version\": 2",
       "m: at /version: expected an integer from 1 to 1, found number 2"},
      {one, "\"version\": 1,\n", "",
       "m: at /version: expected an integer from 1 to 1, found nothing"},
      {one, "\"name\": \"h200x1\"", "\"name\": \"h200/1\"",
       "m: at /name: expected a name of letters, digits, '.', '_' and '-', "
       "found string \"h200/1\""},
      {one, "\"One H200 SXM\"", "\"One\\nH200\"",
       "m: at /description: expected one line, found string \"One\\nH200\""},
      {one, "\"sm_90a\"", "\"sm_90\"",
       "m: at /architecture: expected \"sm_120a\", \"sm_90a\", \"sm_100a\" or "
       "\"host\", found string \"sm_90\""},
      {one, "\"devices\": 1", "\"devices\": 0",
       "m: at /devices: expected an integer from 1 to 1024, found number 0"},
      {"host", "\"multiprocessors\": 2,", "\"multiprocessors\": 2.5,",
       "m: at /device/multiprocessors: expected an integer from 1 to 4096, "
       "found number 2.5"},
      {one, "\"clock_hz\": 1.98e9", "\"clock_hz\": 1.98",
       "m: at /device/clock_hz: expected a number from 1e+08 to 1e+10, found "
       "number 1.98"},
      {one, "\"reserved_bytes\": 1073741824", "\"reserved_bytes\": 150109880320",
       "m: at /device/reserved_bytes: expected an integer from 0 to "
       "150109880319, found number 150109880320"},
      {one, "\"l2_bytes\": 62914560", "\"l2_bytes\": -1",
       "m: at /device/l2_bytes: expected an integer from 0 to 1099511627776, "
       "found number -1"},
      {one, "\"read_bytes_per_second\": 4.33e12",
       "\"read_bytes_per_second\": 4330",
       "m: at /device/read_bytes_per_second: expected a number from 1e+06 to "
       "1e+15, found number 4330"},
      {one, "\"bf16_flops_per_second\": 7.91e14",
       "\"bf16_flops_per_second\": \"many\"",
       "m: at /device/bf16_flops_per_second: expected a number from 0 to "
       "1e+18, found string \"many\""},
      {one, "\"launch_gap_seconds\": 5.1e-7", "\"launch_gap_seconds\": 0.51",
       "m: at /device/launch_gap_seconds: expected a number from 0 to 0.01, "
       "found number 0.51"},
      {one, "\"kind\": \"none\"", "\"kind\": \"nvlink\"",
       "m: at /link/kind: expected \"none\" for one device, found string "
       "\"nvlink\""},
      {two, "\"kind\": \"nvlink\"", "\"kind\": \"pcie\"",
       "m: at /link/kind: expected \"none\", \"pcie3\", \"pcie4\", \"pcie5\", "
       "\"pcie6\" or \"nvlink\", found string \"pcie\""},
      {two, "\"peer_access\": true", "\"peer_access\": \"yes\"",
       "m: at /link/peer_access: expected true or false, found string \"yes\""},
      {rtx, "\"latency_seconds\": 4.5e-7", "\"latency_seconds\": 0.45",
       "m: at /link/latency_seconds: expected a number from 0 to 0.01, found "
       "number 0.45"},
      {rtx, "{\"method\": \"fused\", \"ranks\": 8, \"bytes\": 12288",
       "{\"method\": \"ring\", \"ranks\": 8, \"bytes\": 12288",
       "m: at /collectives/0/method: expected \"fused\", \"nccl\", "
       "\"one_shot\" or \"two_shot\", found string \"ring\"\nm: at /collectives/1: expected an "
       "entry behind the one before it by method, ranks and bytes"},
      {rtx, "\"ranks\": 8, \"bytes\": 16384", "\"ranks\": 9, \"bytes\": 16384",
       "m: at /collectives/3/ranks: expected an integer from 2 to 8, found "
       "number 9"},
      {rtx, "\"bytes\": 262144", "\"bytes\": 16384",
       "m: at /collectives/4: expected an entry behind the one before it by "
       "method, ranks and bytes"},
      {rtx, "\"seconds\": 3.37e-5", "\"seconds\": 0",
       "m: at /collectives/2/seconds: expected a number from 1e-09 to 100, "
       "found number 0"},
      {rtx, "\"seconds\": 3.37e-5", "\"microseconds\": 33.7",
       "m: at /collectives/2/microseconds: unknown key; expected \"method\", "
       "\"ranks\", \"bytes\" or \"seconds\"\nm: at /collectives/2/seconds: "
       "expected a number from 1e-09 to 100, found nothing"},
      {one, "\"collectives\": []",
       "\"collectives\": [{\"method\": \"nccl\", \"ranks\": 2, \"bytes\": 1, "
       "\"seconds\": 1}]",
       "m: at /collectives/0/ranks: expected no collectives of one device, "
       "found number 2\nm: at /collectives/0/seconds: no source: expected "
       "\"/collectives/0/seconds\" or what holds it among /sources"},
      {one, "\"published: one device, no link\"", "\"guessed: no link\"",
       "m: at /sources/~1link: expected a text that begins with \"measured: \","
       " \"reported: \", \"published: \" or \"assumed: \", found string "
       "\"guessed: no link\""},
      {rtx, "\"/collectives/7\": ", "\"/collectives/11\": ",
       "m: at /sources/~1collectives~111: there is no /collectives/11 in this "
       "file\nm: at /collectives/7/seconds: no source: expected "
       "\"/collectives/7/seconds\" or what holds it among /sources"},
      {rtx, "\"/device/clock_hz\": ", "\"/device\": ", "ok"},
      {one, "\"devices\": 1,", "\"devices\": 1, \"gpus\": 1,",
       "m: at /gpus: unknown key; expected \"version\", \"name\", "
       "\"description\", \"architecture\", \"devices\", \"device\", \"link\", "
       "\"collectives\" or \"sources\""},
  };
  for (const Case &c : cases)
    EXPECT_EQ(said(c.name, c.from, c.to), c.message) << c.name << ": " << c.to;
}

TEST(Mistakes, AllAreTold) {
  std::string message =
      Machine::parse("{\"version\": 1}", "m").status().message();
  for (const char *pointer : {"/name", "/description", "/architecture",
                              "/devices", "/device", "/link", "/collectives",
                              "/sources"})
    EXPECT_NE(message.find(std::string("m: at ") + pointer + ": expected "),
              std::string::npos)
        << pointer << " in " << message;
}

TEST(Mistakes, NoObjectNoJson) {
  EXPECT_EQ(Machine::parse("[]", "m").status().message(),
            "m: at /version: expected an integer from 1 to 1, found nothing");
  EXPECT_EQ(Machine::parse("{", "m").status().code(), StatusCode::Invalid);
  EXPECT_EQ(Machine::read("/nonexistent/m.json").status().code(),
            StatusCode::NotFound);
}

} // namespace
