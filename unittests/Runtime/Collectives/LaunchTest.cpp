//===- LaunchTest.cpp - which process of how many this is -----------------===//
//
// Part of mla.
//
//===----------------------------------------------------------------------===//
#include "runtime/collectives/Launch.h"
#include <gtest/gtest.h>
#include <map>

using namespace mla;
using namespace mla::collectives;

namespace {

using Variables = std::map<std::string, std::string>;
Variables variables;

Result<std::optional<World>> worldOf(Variables v) {
  variables = std::move(v);
  return worldFromEnvironment([](const char *name) -> const char * {
    auto found = variables.find(name);
    return found == variables.end() ? nullptr : found->second.c_str();
  });
}

Variables operator+(Variables a, const Variables &b) {
  for (const auto &[name, value] : b)
    a[name] = value;
  return a;
}

void expectWorld(const Variables &v, int rank, int size, int localRank,
                 const std::string &address, int port,
                 const std::string &source) {
  auto world = worldOf(v);
  ASSERT_TRUE(world.ok()) << world.status().message();
  ASSERT_TRUE(world->has_value());
  EXPECT_EQ((*world)->rank, rank);
  EXPECT_EQ((*world)->size, size);
  EXPECT_EQ((*world)->localRank.value_or(-1), localRank);
  EXPECT_EQ((*world)->address, address);
  EXPECT_EQ((*world)->port, port);
  EXPECT_EQ((*world)->source, source);
}

void expectNone(const Variables &v) {
  auto world = worldOf(v);
  ASSERT_TRUE(world.ok()) << world.status().message();
  EXPECT_FALSE(world->has_value());
}

void expectError(const Variables &v, const std::string &message) {
  auto world = worldOf(v);
  ASSERT_FALSE(world.ok());
  EXPECT_EQ(world.status().code(), StatusCode::Invalid);
  EXPECT_EQ(world.status().message().substr(0, message.size()), message);
}

const Variables torchrun = {{"RANK", "3"},
                            {"WORLD_SIZE", "8"},
                            {"LOCAL_RANK", "1"},
                            {"LOCAL_WORLD_SIZE", "2"},
                            {"MASTER_ADDR", "10.0.0.7"},
                            {"MASTER_PORT", "29500"}};
const Variables openMpi = {{"OMPI_COMM_WORLD_RANK", "1"},
                           {"OMPI_COMM_WORLD_SIZE", "4"},
                           {"OMPI_COMM_WORLD_LOCAL_RANK", "1"},
                           {"OMPI_COMM_WORLD_LOCAL_SIZE", "2"}};
const Variables mpich = {{"PMI_RANK", "2"},
                         {"PMI_SIZE", "3"},
                         {"MPI_LOCALRANKID", "2"},
                         {"MPI_LOCALNRANKS", "3"}};
const Variables step = {{"SLURM_PROCID", "5"},
                        {"SLURM_NTASKS", "16"},
                        {"SLURM_LOCALID", "1"},
                        {"SLURM_STEP_ID", "3"},
                        {"SLURM_JOB_ID", "1001"},
                        {"SLURM_NNODES", "4"},
                        {"SLURM_LAUNCH_NODE_IPADDR", "10.1.2.3"}};
const Variables place = {{"MASTER_ADDR", "head"}, {"MASTER_PORT", "4711"}};

TEST(Launch, NobodySaysAnything) {
  expectNone({});
  expectNone({{"PATH", "/bin"}, {"MASTER_ADDR", "x"}, {"MASTER_PORT", "y"}});
  expectNone({{"RANK", ""}, {"WORLD_SIZE", ""}});
}

TEST(Launch, Torchrun) {
  expectWorld(torchrun, 3, 8, 1, "10.0.0.7", 29500, "torchrun");
  // Its own store listens at the port.
  expectWorld(torchrun + Variables{{"TORCHELASTIC_USE_AGENT_STORE", "True"}}, 3,
              8, 1, "10.0.0.7", 29501, "torchrun");
  expectWorld(torchrun + Variables{{"TORCHELASTIC_USE_AGENT_STORE", "False"}},
              3, 8, 1, "10.0.0.7", 29500, "torchrun");
}

TEST(Launch, Mpi) {
  expectWorld(openMpi + place, 1, 4, 1, "head", 4711, "Open MPI");
  expectError(openMpi,
              "MLA_MASTER_ADDR: expected the address of the machine of "
              "rank 0, found nothing");
  // All on one machine: only the port is missing.
  expectWorld(mpich + Variables{{"MLA_MASTER_PORT", "77"}}, 2, 3, 2,
              "127.0.0.1", 77, "MPICH");
  expectError(mpich, "MLA_MASTER_PORT: expected the port at which rank 0 "
                     "listens, found nothing");
}

TEST(Launch, SlurmStep) {
  expectWorld(step, 5, 16, 1, "10.1.2.3", 15000 + (1001 * 16 + 3) % 15000,
              "Slurm");
  expectWorld(step + place, 5, 16, 1, "head", 4711, "Slurm");
  expectWorld(step + Variables{{"SLURM_STEP_NUM_TASKS", "8"},
                               {"SLURM_STEP_NUM_NODES", "1"}},
              5, 8, 1, "127.0.0.1", 15000 + (1001 * 16 + 3) % 15000, "Slurm");
}

TEST(Launch, SlurmShellsAreNoRanks) {
  Variables shell = step;
  // salloc's shell; sbatch's script, which is task 0 by name.
  shell.erase("SLURM_STEP_ID");
  expectNone(shell);
  shell["SLURM_PROCID"] = "0";
  expectNone(shell);
  shell.erase("SLURM_PROCID");
  expectNone(shell);
  // The interactive step, and that of a batch script, by their numbers.
  expectNone(step +
             Variables{{"SLURM_PROCID", "0"}, {"SLURM_STEP_ID", "4294967290"}});
  expectNone(step +
             Variables{{"SLURM_PROCID", "0"}, {"SLURM_STEP_ID", "4294967291"}});
  // srun --pty bash
  expectNone(step + Variables{{"SLURM_PROCID", "0"}, {"SLURM_NTASKS", "1"}});
}

TEST(Launch, Precedence) {
  Variables all = torchrun + openMpi + mpich + step;
  Variables own = {{"MLA_RANK", "0"},
                   {"MLA_WORLD_SIZE", "2"},
                   {"MLA_MASTER_ADDR", "::1"},
                   {"MLA_MASTER_PORT", "1"}};
  expectWorld(all + own, 0, 2, -1, "::1", 1, "MLA_RANK");
  expectWorld(all, 3, 8, 1, "10.0.0.7", 29500, "torchrun");
  expectWorld(openMpi + mpich + step + place, 1, 4, 1, "head", 4711,
              "Open MPI");
  expectWorld(mpich + step + place, 2, 3, 2, "head", 4711, "MPICH");
  // The address alone too.
  expectWorld(torchrun +
                  Variables{{"MLA_MASTER_ADDR", "a"}, {"MLA_MASTER_PORT", "5"}},
              3, 8, 1, "a", 5, "torchrun");
}

TEST(Launch, AWorldOfOneIsNone) {
  expectNone({{"RANK", "0"}, {"WORLD_SIZE", "1"}});
  expectNone(step + Variables{{"MLA_RANK", "0"}, {"MLA_WORLD_SIZE", "1"}});
}

TEST(Launch, HalfOfASet) {
  expectError({{"RANK", "1"}}, "WORLD_SIZE: expected a number from 1 to 1024, "
                               "found nothing");
  expectError({{"WORLD_SIZE", "4"}},
              "RANK: expected a number from 0 to 3, found nothing");
  expectError({{"MLA_RANK", "0"}}, "MLA_WORLD_SIZE: expected a number");
  expectError({{"OMPI_COMM_WORLD_SIZE", "2"}},
              "OMPI_COMM_WORLD_RANK: expected a number from 0 to 1, found "
              "nothing");
  expectError({{"PMI_RANK", "2"}}, "PMI_SIZE: expected");
  Variables half = step;
  half.erase("SLURM_NTASKS");
  expectError(half, "SLURM_NTASKS: expected a number");
  half = torchrun;
  half.erase("MASTER_PORT");
  expectError(half, "MLA_MASTER_PORT: expected the port");
}

TEST(Launch, WrongNumbers) {
  auto with = [](const char *name, const char *value) {
    return torchrun + Variables{{name, value}};
  };
  expectError(with("RANK", "8"),
              "RANK: expected a number from 0 to 7, found \"8\"");
  expectError(with("RANK", "-1"), "RANK: expected a number from 0 to 7, found "
                                  "\"-1\"");
  expectError(with("RANK", "1x"), "RANK: expected");
  expectError(with("RANK", "99999999999999999999"), "RANK: expected");
  expectError(with("WORLD_SIZE", "0"),
              "WORLD_SIZE: expected a number from 1 to "
              "1024, found \"0\"");
  expectError(with("LOCAL_RANK", "8"), "LOCAL_RANK: expected");
  expectError(with("MASTER_PORT", "0"), "MASTER_PORT: expected a number from 1 "
                                        "to 65535, found \"0\"");
  expectError(with("MASTER_PORT", "65536"), "MASTER_PORT: expected");
  expectError(with("MLA_MASTER_PORT", "no"), "MLA_MASTER_PORT: expected");
}

} // namespace
