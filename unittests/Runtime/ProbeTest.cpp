//===- ProbeTest.cpp - mla-run probe --------------------------------------===//
//
// Part of mla. The host is measured as it is; GPUs are those of FakeCuda.cpp, of
// which times mean nothing, but what is found out about links does.
//
//===----------------------------------------------------------------------===//
#include "runtime/probe/Probe.h"
#include "Fakes.h"
#include "TestPlan.h"
#include "mla/Support/Json.h"
#include "runtime/cli/Commands.h"
#include "runtime/collectives/nccl/Nccl.h"
#include "runtime/probe/Gpu.h"
#include <fstream>
#include <gtest/gtest.h>
#include <sstream>

using namespace mla;
namespace fs = std::filesystem;

namespace {

class ProbeTest : public testing::Test {
protected:
  void SetUp() override {
    cuda = test::freshCuda();
    ASSERT_TRUE(cuda) << dlerror();
    cuda->totalMemory = uint64_t(320) << 20;
    options.output = folder.path / "machine.json";
    options.driver = MLA_FAKE_CUDA;
    options.nccl = "/nonexistent/libnccl.so";
  }

  /// The machine that a probe wrote.
  Machine probed() {
    Status status = cli::probe(options, out, err);
    EXPECT_TRUE(status.ok()) << status.message();
    Result<Machine> machine = Machine::read(options.output);
    EXPECT_TRUE(machine.ok()) << machine.status().message();
    return machine.ok() ? *machine : Machine();
  }
  void expectNothingAlive() const {
    EXPECT_EQ(cuda->contexts, 0);
    EXPECT_EQ(cuda->buffers, 0);
    EXPECT_EQ(cuda->streams, 0);
    EXPECT_EQ(cuda->modules, 0);
    EXPECT_EQ(cuda->graphs, 0);
    EXPECT_EQ(cuda->execs, 0);
    EXPECT_EQ(cuda->events, 0);
  }
  bool printed(const std::string &text) const {
    return out.str().find(text) != std::string::npos;
  }

  test::TempFolder folder;
  FakeCuda *cuda = nullptr;
  cli::ProbeOptions options;
  std::ostringstream out, err;
};

TEST_F(ProbeTest, Host) {
  options.host = true;
  options.threads = 2;
  options.name = "mine";
  Machine m = probed();
  EXPECT_EQ(m.name, "mine");
  EXPECT_TRUE(m.isHost());
  EXPECT_EQ(m.multiprocessors, 2);
  EXPECT_EQ(m.link.kind, "none");
  EXPECT_GT(m.readBytesPerSecond, 1e8);
  EXPECT_TRUE(m.sourceOf("/device/read_bytes_per_second")
                  .starts_with("measured: "));
  EXPECT_TRUE(printed("read bandwidth")) << out.str();
}

TEST_F(ProbeTest, WithoutADriverTheHostIsMeasured) {
  options.driver = "/nonexistent/libcuda.so";
  EXPECT_TRUE(probed().isHost());
  EXPECT_NE(err.str().find("the host is measured: an NVIDIA GPU is needed"),
            std::string::npos)
      << err.str();
  options.gpus = 1; // Asked for, a GPU must be there.
  EXPECT_EQ(cli::probe(options, out, err).code(), StatusCode::Unsupported);
}

TEST_F(ProbeTest, OneGpu) {
  Machine m = probed();
  EXPECT_EQ(m.name, "fake-gpux1");
  EXPECT_EQ(m.architecture, "sm_90a");
  EXPECT_EQ(m.devices, 1);
  EXPECT_EQ(m.multiprocessors, 132);
  EXPECT_EQ(m.memoryBytes, 320 << 20);
  EXPECT_EQ(m.l2Bytes, 50 << 20);
  EXPECT_EQ(m.clockHz, 2e9);
  EXPECT_EQ(m.launchGapSeconds, 1e-6); // 500 launches in 0.5 ms
  EXPECT_GT(m.fp8FlopsPerSecond, 1e15);
  EXPECT_EQ(m.fp4FlopsPerSecond, 0);
  EXPECT_TRUE(m.sourceOf("/device/fp8_flops_per_second")
                  .starts_with("assumed: as h200x1"));
  EXPECT_EQ(m.link.kind, "none");
  expectNothingAlive();
}

TEST_F(ProbeTest, TwoGpusThatReachEachOther) {
  cuda->devices = 2;
  cuda->peerAtomics = true;
  Machine m = probed();
  EXPECT_EQ(m.name, "fake-gpux2");
  EXPECT_EQ(m.devices, 2);
  EXPECT_EQ(m.link.kind, "nvlink");
  EXPECT_EQ(m.link.peerAccess, true);
  EXPECT_GT(m.link.writeBytesPerSecond, 1e9);
  EXPECT_GT(m.link.readBytesPerSecond, 1e9);
  EXPECT_NEAR(m.link.latencySeconds, 7e-7, 1e-12);
  // By kernels: one row to 32 in three ways, and large vectors.
  ASSERT_EQ(m.collectives.size(), 15U) << out.str();
  EXPECT_EQ(m.collectives[0].method, "fused");
  EXPECT_EQ(m.collectives[0].bytes, 14336);
  EXPECT_EQ(m.collectives[0].ranks, 2);
  EXPECT_NEAR(m.collectives[0].seconds, 5e-4 / 20, 1e-9);
  EXPECT_EQ(m.collectives[14].method, "two_shot");
  EXPECT_EQ(m.collectives[14].bytes, 1 << 24);
  EXPECT_EQ(m.sourceOf("/collectives/14"),
            "measured: mla-run probe, kernels that exchange in a graph");
  EXPECT_TRUE(printed("hint: no all-reduces by NCCL: NCCL cannot be loaded"))
      << out.str();
  expectNothingAlive();
}

TEST_F(ProbeTest, WhatIsReportedIsNotBelieved) {
  cuda->devices = 2;
  cuda->peerWorks = false;
  Machine m = probed();
  EXPECT_EQ(m.link.peerAccess, false);
  EXPECT_EQ(m.link.writeBytesPerSecond, 0);
  EXPECT_EQ(m.link.latencySeconds, 0);
  EXPECT_EQ(m.sourceOf("/link/peer_access"),
            "measured: mla-run probe, peer access is reported but data did not "
            "arrive");
  EXPECT_TRUE(printed("hint: peer access is reported but data did not arrive "
                      "(GPU 0 to GPU 1: 256 of 256 pieces of 16 bytes stored in "
                      "a peer's memory are not what was written): p2p stays off"))
      << out.str();
  expectNothingAlive();
}

TEST_F(ProbeTest, NoPeerAccess) {
  cuda->devices = 2;
  cuda->peerReported = false;
  Machine m = probed();
  EXPECT_EQ(m.link.peerAccess, false);
  EXPECT_EQ(m.sourceOf("/link/peer_access"), "reported: driver, no peer access");
  EXPECT_TRUE(printed("hint: no peer access (GPU 0 to GPU 1: the driver reports "
                      "no peer access): p2p stays off"))
      << out.str();
}

TEST_F(ProbeTest, WhatNeverEndsIsAnError) {
  double before = std::exchange(probe::Gpu::patience, 0.05);
  cuda->stuck = true;
  Status status = cli::probe(options, out, err);
  probe::Gpu::patience = before;
  EXPECT_NE(status.message().find("GPU 0 did not end within"),
            std::string::npos)
      << status.message();
  EXPECT_FALSE(fs::exists(options.output));
}

TEST_F(ProbeTest, GpusThatMlaDoesNotKnow) {
  cuda->minor = 9;
  EXPECT_EQ(cli::probe(options, out, err).message(),
            "Fake GPU is sm_99: expected one of sm_120a, sm_90a, sm_100a");
  cuda->major = 8;
  EXPECT_EQ(cli::probe(options, out, err).message(),
            "Fake GPU has compute capability 8.9; the probe's kernels need 9.0");
  cuda->major = 9, cuda->minor = 0;
  options.gpus = 2;
  EXPECT_EQ(cli::probe(options, out, err).message(),
            "expected at most 1 GPUs, which the driver shows, found 2");
  EXPECT_FALSE(fs::exists(options.output));
  expectNothingAlive();
}

TEST_F(ProbeTest, OnlyMachineFilesAreReplaced) {
  options.host = true;
  options.threads = 1;
  probed();
  probed(); // Again, over the first.
  std::ofstream(options.output) << "{}";
  EXPECT_EQ(cli::probe(options, out, err).message(),
            options.output.string() +
                ": exists and is no machine file; not replaced");
  EXPECT_EQ(*readFile(options.output), "{}");
  options.output = folder.path / "none" / "machine.json";
  EXPECT_EQ(cli::probe(options, out, err).message(),
            (folder.path / "none").string() + ": no such folder");
  options.output = folder.path;
  EXPECT_FALSE(cli::probe(options, out, err).ok());
  options.output = folder.path / "other.json";
  options.name = "no/name";
  EXPECT_NE(cli::probe(options, out, err).message().find("at /name: expected"),
            std::string::npos);
  EXPECT_FALSE(fs::exists(options.output));
}

TEST(Nccl, WhatIsNoNccl) {
  Result<std::unique_ptr<nccl::Library>> library =
      nccl::Library::load(MLA_FAKE_CUDA);
  ASSERT_FALSE(library.ok());
  EXPECT_NE(library.status().message().find(
                "is no NCCL that can be used: it has no ncclGetVersion, "),
            std::string::npos)
      << library.status().message();
}

/// A folder as /sys with a GPU below a bridge.
class SysfsTest : public testing::Test {
protected:
  void SetUp() override {
    fs::path gpu = folder.path / "devices/pci0000:00/0000:00:01.0/0000:0a:00.0";
    fs::create_directories(gpu);
    fs::create_directories(folder.path / "bus/pci/devices");
    for (const fs::path &device : {gpu, gpu.parent_path()})
      fs::create_directory_symlink(device, folder.path / "bus/pci/devices" /
                                               device.filename());
    std::ofstream(gpu / "max_link_speed") << "32.0 GT/s PCIe\n";
  }
  /// A configuration space whose second extended capability is ACS.
  void bridge(char control) const {
    std::string config(4096, '\0');
    config[0x100] = 1, config[0x102] = 1, config[0x103] = 0x15; // next: 0x150
    config[0x150] = 0x0D, config[0x152] = 1;
    config[0x156] = control;
    std::ofstream(folder.path / "bus/pci/devices/0000:00:01.0/config",
                  std::ios::binary)
        << config;
  }
  std::vector<std::string> hints() const {
    return probe::linkHints({"0000:0a:00.0"}, folder.path.string());
  }
  test::TempFolder folder;
};

TEST_F(SysfsTest, BridgesThatRedirect) {
  EXPECT_TRUE(hints().empty());
  bridge(0x1D);
  ASSERT_EQ(hints().size(), 1u);
  EXPECT_NE(hints()[0].find("ACS on 0000:00:01.0"), std::string::npos);
  bridge(0x01); // Source validation alone redirects nothing.
  EXPECT_TRUE(hints().empty());
}

TEST_F(SysfsTest, Iommu) {
  fs::path group = folder.path / "bus/pci/devices/0000:0a:00.0/iommu_group";
  fs::create_directories(group);
  std::ofstream(group / "type") << "DMA-FQ\n";
  ASSERT_EQ(hints().size(), 1u);
  EXPECT_NE(hints()[0].find("domain type DMA-FQ"), std::string::npos);
  std::ofstream(group / "type") << "identity\n";
  EXPECT_TRUE(hints().empty());
}

TEST_F(SysfsTest, Slots) {
  EXPECT_EQ(probe::pcieKind("0000:0a:00.0", folder.path.string()), "pcie5");
  EXPECT_EQ(probe::pcieKind("0000:0b:00.0", folder.path.string()), "");
}

TEST(Names, OfMachines) {
  EXPECT_EQ(probe::machineName("NVIDIA H200", 2), "nvidia-h200x2");
  EXPECT_EQ(probe::machineName(
                "NVIDIA RTX PRO 6000 Blackwell Server Edition ", 8),
            "nvidia-rtx-pro-6000-blackwell-server-editionx8");
  EXPECT_EQ(probe::machineName("//", 1), "gpux1");
}

} // namespace
