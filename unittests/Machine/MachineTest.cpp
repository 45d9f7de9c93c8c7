//===- MachineTest.cpp - shipped machines, round trips ---------------------===//
//
// Part of mla.
//
//===----------------------------------------------------------------------===//
#include "mla/Machine/Machine.h"
#include "mla/Support/Json.h"
#include "unittests/TempFolder.h"
#include <gtest/gtest.h>
#include <fstream>

using namespace mla;

namespace {

TEST(Capabilities, AreToldApart) {
  const Capability *sm120 = findCapability("sm_120a");
  const Capability *sm100 = findCapability("sm_100a");
  const Capability *sm90 = findCapability("sm_90a");
  ASSERT_TRUE(sm120 && sm100 && sm90);
  EXPECT_EQ(capabilities().size(), 3u);
  EXPECT_EQ(sm120->sharedBytesPerBlock, 101376);
  EXPECT_EQ(sm90->sharedBytesPerBlock, 232448);
  EXPECT_TRUE(sm120->hasFp4 && !sm120->hasWgmma && !sm120->hasTcgen05);
  EXPECT_TRUE(sm100->hasFp4 && !sm100->hasWgmma && sm100->hasTcgen05);
  EXPECT_TRUE(!sm90->hasFp4 && sm90->hasWgmma && !sm90->hasTcgen05);
  EXPECT_TRUE(sm120->hasKernels && sm90->hasKernels && !sm100->hasKernels);
  EXPECT_EQ(findCapability("sm_120"), nullptr);
  EXPECT_EQ(findCapability("host"), nullptr);
  for (const Capability &c : capabilities())
    EXPECT_EQ(c.sharedBytesPerBlock + 1024, c.sharedBytesPerSM) << c.name;
}

TEST(Shipped, AllReadAndAreInTheFormThatIsWritten) {
  std::vector<std::string> names = shippedMachines();
  EXPECT_EQ(names, (std::vector<std::string>{"b200x8", "h200x1", "h200x2",
                                             "h200x8", "host",
                                             "rtx-pro-6000x8-pcie5"}));
  for (const std::string &name : names) {
    Result<Machine> machine = findMachine(name);
    ASSERT_TRUE(machine.ok()) << machine.status().message();
    EXPECT_EQ(machine->name, name);
    EXPECT_EQ(machine->isHost(), machine->capability() == nullptr);
    // The library carries the file as it is now.
    Result<std::string> text =
        readFile(std::filesystem::path(MLA_MACHINES) / (name + ".json"));
    ASSERT_TRUE(text.ok());
    EXPECT_EQ(machine->json(), *text) << name;
  }
}

TEST(Shipped, FactsOfTheBoards) {
  Result<Machine> rtx = findMachine("rtx-pro-6000x8-pcie5");
  ASSERT_TRUE(rtx.ok());
  EXPECT_EQ(rtx->architecture, "sm_120a");
  EXPECT_EQ(rtx->devices, 8);
  EXPECT_EQ(rtx->multiprocessors, 188);
  EXPECT_EQ(rtx->link.kind, "pcie5");
  // 1,024 bf16 multiply-adds a cycle and multiprocessor are 2,048 flops in fp8
  // and 4,096 in fp4; a sheet with sparsity in it would be twice that.
  double perCycle = static_cast<double>(rtx->multiprocessors) * rtx->clockHz;
  EXPECT_NEAR(rtx->bf16FlopsPerSecond / perCycle, 1024, 20);
  EXPECT_NEAR(rtx->fp8FlopsPerSecond / perCycle, 2048, 40);
  EXPECT_NEAR(rtx->fp4FlopsPerSecond / perCycle, 4096, 80);
  Result<Machine> h200 = findMachine("h200x1");
  ASSERT_TRUE(h200.ok());
  EXPECT_EQ(h200->devices, 1);
  EXPECT_EQ(h200->fp4FlopsPerSecond, 0);
  EXPECT_TRUE(h200->collectives.empty());
}

TEST(Shipped, EveryFigureHasASource) {
  for (const std::string &name : shippedMachines()) {
    Result<Machine> machine = findMachine(name);
    ASSERT_TRUE(machine.ok());
    EXPECT_FALSE(machine->sourceOf("/device/clock_hz").empty()) << name;
    EXPECT_FALSE(machine->sourceOf("/link/latency_seconds").empty()) << name;
    for (size_t i = 0; i < machine->collectives.size(); ++i)
      EXPECT_FALSE(machine->sourceOf("/collectives/" + std::to_string(i) +
                                     "/seconds")
                       .empty())
          << name << " " << i;
  }
}

TEST(Find, DefaultsOfArchitectures) {
  for (auto [architecture, name] :
       {std::pair("sm_120a", "rtx-pro-6000x8-pcie5"), {"sm_90a", "h200x1"},
        {"sm_100a", "b200x8"}, {"host", "host"}}) {
    Result<Machine> machine = defaultMachine(architecture);
    ASSERT_TRUE(machine.ok()) << machine.status().message();
    EXPECT_EQ(machine->name, name);
    EXPECT_EQ(machine->architecture, architecture);
  }
  EXPECT_EQ(defaultMachine("sm_80").status().message(),
            "no machine stands for architecture 'sm_80': expected one of "
            "sm_120a, sm_90a, sm_100a, host");
}

TEST(Find, FilesAndWhatIsNeither) {
  test::TempFolder folder;
  std::filesystem::path file = folder / "machine.json";
  Result<Machine> machine = findMachine("h200x2");
  ASSERT_TRUE(machine.ok());
  machine->name = "mine";
  machine->link.peerAccess.reset();
  machine->sources.erase("/link/peer_access");
  machine->description = "quotes \" and \xC3\xA9";
  std::ofstream(file) << machine->json();
  Result<Machine> back = findMachine(file.string());
  ASSERT_TRUE(back.ok()) << back.status().message();
  EXPECT_EQ(back->json(), machine->json());
  EXPECT_EQ(back->name, "mine");
  EXPECT_FALSE(back->link.peerAccess.has_value());

  EXPECT_EQ(findMachine("h100").status().message(),
            "machine 'h100': expected a file or one of b200x8, h200x1, h200x2, "
            "h200x8, host, rtx-pro-6000x8-pcie5");
  EXPECT_EQ(findMachine("").status().code(), StatusCode::NotFound);
  EXPECT_EQ(findMachine(folder.path.string()).status().code(),
            StatusCode::Invalid);
}

TEST(RoundTrip, NumbersAreExact) {
  Result<Machine> machine = findMachine("h200x2");
  ASSERT_TRUE(machine.ok());
  machine->clockHz = 1980000001.25;
  machine->readBytesPerSecond = 4333798164920.2954;
  machine->launchGapSeconds = 5.123456789012345e-07;
  machine->link.peerAccess = false;
  machine->collectives[0].seconds = 1e-5;
  Result<Machine> back = Machine::parse(machine->json(), "text");
  ASSERT_TRUE(back.ok()) << back.status().message();
  EXPECT_EQ(back->clockHz, machine->clockHz);
  EXPECT_EQ(back->readBytesPerSecond, machine->readBytesPerSecond);
  EXPECT_EQ(back->launchGapSeconds, machine->launchGapSeconds);
  EXPECT_EQ(back->link.peerAccess, false);
  EXPECT_EQ(back->collectives[0].seconds, 1e-5);
  EXPECT_EQ(back->sources, machine->sources);
}

} // namespace
