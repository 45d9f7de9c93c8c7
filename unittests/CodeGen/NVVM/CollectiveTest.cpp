//===- CollectiveTest.cpp - kernels that exchange rows --------------------===//
//
// Part of mla. With $MLA_WRITE_COLLECTIVES_PTX set the file that the runtime carries is
// made anew:
//
//   MLA_WRITE_COLLECTIVES_PTX=1 CodeGenNVVMTests --gtest_filter='Collectives.*'
//
//===----------------------------------------------------------------------===//
#include "Harness.h"
#include "lib/CodeGen/NVVM/CollectiveKernels.h"
#include "mla/Plan/Expr.h"
#include "runtime/collectives/p2p/Kernels.h"
#include "llvm/ADT/SmallVector.h"
#include "llvm/ADT/StringExtras.h"
#include <iterator>
#include <map>
#include <regex>

using namespace mla;
using namespace mla::nvvm;
using namespace mla::nvvm::test;

namespace {

ExchangeSpec among(int64_t ranks, int64_t blocks = 8) {
  ExchangeSpec with;
  with.layout.ranks = with.ranks = ranks;
  with.layout.blocks = blocks;
  return with;
}

/// Every kind of kernel that stores at peers, with Kimi's sizes on eight ranks.
void oneOfEach(KernelSite site, const ExchangeSpec &with) {
  ReduceSpec reduce{7168, Format::BF16, true};
  allReduceOneShot(site, with, reduce, "tokens");
  allReduceTwoShot(site, with, reduce, "tokens");
  allReduceNorm(site, with, {reduce, Format::BF16, 1e-6}, "tokens");
  allGather(site, with, {{{64, 512}}}, "tokens");
  mergeAttention(site, with, {8, 512}, "tokens");
}

TEST(Collectives, PlacesDoNotOverlap) {
  for (int64_t ranks : {2, 3, 8})
    for (int64_t blocks : {1, 8, 64}) {
      ExchangeLayout l = among(ranks, blocks).layout;
      int64_t slots = blocks * 2 * ranks;
      EXPECT_GE(l.partials(), l.counters() + blocks * l.line);
      EXPECT_GE(l.flags(), l.partials() + blocks * blocks * l.unit);
      EXPECT_GE(l.flagged(), l.flags() + slots * l.line);
      EXPECT_EQ(l.flagged() % 16, 0);
      EXPECT_GE(l.bulk(), l.flagged() + slots * l.flaggedUnits * l.unit);
      EXPECT_EQ(l.bytes(false), l.bulk());
      EXPECT_GE(l.bytes(true), l.bulk() + slots * l.bulkUnits * l.unit);
      // Kernels compute offsets in 32 bits.
      EXPECT_LT(l.end(), int64_t(1) << 31);
    }
}

TEST(Collectives, AllReduce) {
  for (int64_t ranks : {2, 3, 8})
    expectCompilesFor(gpusOf(ranks == 8 ? 0 : 1), [&](KernelSite site) {
      for (Format format : {Format::BF16, Format::F32})
        for (int64_t width : {7, 7168}) {
          ReduceSpec spec{width, format, /*residual=*/width == 7168};
          allReduceOneShot(site, among(ranks), spec, "tokens");
          allReduceTwoShot(site, among(ranks), spec, "tokens");
        }
    });
}

TEST(Collectives, AllReduceNorm) {
  for (int64_t ranks : {2, 7, 8})
    expectCompilesFor(gpusOf(ranks == 8 ? 0 : 1), [&](KernelSite site) {
      ExchangeSpec with = among(ranks);
      for (int64_t width : {7, 7168}) {
        allReduceNorm(site, with, {{width, Format::BF16, true}, Format::BF16, 1e-6},
                      "tokens");
        allReduceNorm(site, with, {{width, Format::F32}, Format::F16, 1e-6},
                      "tokens");
      }
      allReduceNorm(site, with, {{256}, Format::F32, 1e-6}, "tokens");
    });
  const Gpu &gpu = *lookupGpu("sm_120a");
  EXPECT_TRUE(canReduceNorm(among(8), {8192}, gpu));
  EXPECT_FALSE(canReduceNorm(among(8), {8196}, gpu));
  EXPECT_FALSE(canReduceNorm(among(8), {8192, Format::F32}, gpu));
}

TEST(Collectives, AllGather) {
  for (int64_t ranks : {6, 8})
    expectCompilesFor(gpusOf(1), [&](KernelSite site) {
      for (Format format : {Format::BF16, Format::F32})
        for (Transport transport : {Transport::Flagged, Transport::Bulk}) {
          if (ranks != 8 && (format == Format::F32) != (transport == Transport::Bulk))
            continue; // Each of both is enough.
          allGather(site, among(ranks),
                    {{{20480, 20480 * ranks}}, format, transport}, "outputs");
          // Odd parts, padding, several.
          allGather(site, among(ranks),
                    {{{17, 17 * ranks - 3}, {72, 72 * ranks}, {1, 2}},
                     format,
                     transport},
                    "tokens");
        }
    });
}

TEST(Collectives, MergeAttention) {
  for (int64_t ranks : {5, 8})
    expectCompilesFor(gpusOf(1), [&](KernelSite site) {
      for (Format format : {Format::BF16, Format::F32})
        for (Transport transport : {Transport::Flagged, Transport::Bulk})
          for (int64_t latent : {512, format == Format::BF16 ? 30 : 31})
            if (ranks == 8 || latent != 512)
              mergeAttention(site, among(ranks), {3, latent, format, transport},
                             "tokens");
    });
  EXPECT_TRUE(canMerge(among(8), {8, 512}));
  EXPECT_FALSE(canMerge(among(8), {8, 16384, Format::F32}));
}

TEST(Collectives, MergeAttentionOfOneRankCompiles) {
  expectCompiles([](KernelSite site) {
    for (int64_t latent : {1, 30, 512})
      for (int64_t ranks : {2, 8, 72})
        EXPECT_EQ(mergeAttentionLocal(site, 3, latent, ranks).grid, "tokens * 3");
  });
}

TEST(Collectives, ManyOrFewBlocks) {
  for (int64_t blocks : {1, 64})
    expectCompilesFor({"sm_120a"}, [&](KernelSite site) {
      oneOfEach(site, among(8, blocks));
    });
}

/// Half of a GPU's multiprocessors, as far as there are places.
TEST(Collectives, BlocksOfAGpu) {
  EXPECT_EQ(exchangeBlocksOf(132), 64);
  EXPECT_EQ(exchangeBlocksOf(188), 64);
  EXPECT_EQ(exchangeBlocksOf(36), 18);
  EXPECT_EQ(exchangeBlocksOf(1), 1);
}

/// What a wait must not do is hold a GPU: no grid is larger than the blocks that may
/// wait, and with few rows it is not empty.
TEST(Collectives, GridsAreBounded) {
  makeFor(*lookupGpu("sm_120a"), [](KernelSite site) {
    for (int64_t blocks : {1, 8, 11}) {
      ExchangeSpec with = among(8, blocks);
      ReduceSpec reduce{7168};
      for (const Kernel &kernel :
           {allReduceOneShot(site, with, reduce, "tokens"),
            allReduceTwoShot(site, with, reduce, "tokens"),
            allReduceNorm(site, with, {reduce, Format::BF16, 1e-6}, "tokens"),
            allGather(site, with, {{{5, 40}}}, "tokens"),
            mergeAttention(site, with, {8, 512}, "tokens")}) {
        auto grid = plan::Expr::parse(kernel.grid);
        ASSERT_TRUE(grid.ok()) << kernel.grid;
        for (int64_t tokens : {1, 3, 64, 2048}) {
          plan::SymbolValues symbols;
          symbols[plan::Symbol::Tokens] = tokens;
          auto value = grid->evaluate(symbols);
          ASSERT_TRUE(value.ok());
          EXPECT_GE(*value, 1) << kernel.name;
          EXPECT_LE(*value, blocks) << kernel.name;
        }
      }
    }
  });
}

//===--- Scopes ---------------------------------------------------------------===//

std::vector<std::string> registersIn(const std::string &text) {
  static const std::regex name("(%[a-z]+[0-9]+|\\bpeer\\b|\\bpa\\b|\\bpb\\b)");
  std::vector<std::string> out;
  for (std::sregex_iterator it(text.begin(), text.end(), name), end; it != end;
       ++it)
    out.push_back(it->str());
  return out;
}

/// Follows every address that comes out of the table of peers, which is parameter 0,
/// through the PTX of one kernel: what reads or writes through one must be of system
/// scope. Returns the accesses that are not; counts the others.
std::vector<std::string> narrowAccesses(const std::string &kernel,
                                        int &accesses) {
  // Register -> 1: derived from the table's address, 2: from an address in it.
  std::map<std::string, int> marks;
  std::vector<std::string> bad;
  static const std::regex memory(
      "^(@!?%p[0-9]+ )?(ld|st|atom|red)\\.([a-z0-9.:_]+)\\s+(.*)$");
  llvm::SmallVector<llvm::StringRef> lines;
  llvm::StringRef(kernel).split(lines, '\n');
  for (bool changed = true, last = false; changed || !last;) {
    last = !changed;
    changed = false;
    bad.clear();
    accesses = 0;
    for (llvm::StringRef ref : lines) {
      std::string line = ref.trim().str();
      if (line.empty() || line[0] == '.' || line[0] == '/' ||
          line[0] == '{' || line[0] == '}' || line[0] == '$')
        continue;
      auto mark = [&](const std::string &name, int value) {
        int &known = marks[name];
        if (value > known) {
          known = value;
          changed = true;
        }
      };
      std::smatch m;
      if (std::regex_match(line, m, memory)) {
        std::string op = m[2], kind = m[3], rest = m[4];
        size_t open = rest.find('['), close = rest.find(']');
        std::string address = rest.substr(open, close - open);
        if (kind.find("param") != std::string::npos) {
          if (address.find("_param_0") != std::string::npos)
            mark(registersIn(rest.substr(0, open))[0], 1);
          continue;
        }
        int worst = 0;
        for (const std::string &name : registersIn(address))
          worst = std::max(worst, marks[name]);
        if (worst == 2) {
          ++accesses;
          if (kind.find(".sys.") == std::string::npos &&
              kind.find("sys.") != 0)
            bad.push_back(line);
        }
        // An 8-byte word of the table is an address; rank and ranks are read as 4.
        if (worst == 1 && op == "ld" && kind.find("64") != std::string::npos)
          for (const std::string &name : registersIn(rest.substr(0, open)))
            mark(name, 2);
        continue;
      }
      std::vector<std::string> names = registersIn(line);
      if (line[0] == '@' && !names.empty())
        names.erase(names.begin());
      if (names.size() < 2 || line.find("setp") != std::string::npos)
        continue;
      int worst = 0;
      for (size_t i = 1; i < names.size(); ++i)
        worst = std::max(worst, marks[names[i]]);
      // "peer" is another register in each block of inline PTX.
      if (names[0] == "peer" || names[0] == "pa" || names[0] == "pb")
        marks[names[0]] = worst;
      else
        mark(names[0], worst);
    }
  }
  return bad;
}

std::vector<std::string> kernelsIn(const std::string &ptx) {
  std::vector<std::string> out;
  for (size_t at = ptx.find(".entry"); at != std::string::npos;) {
    size_t next = ptx.find(".entry", at + 1);
    out.push_back(ptx.substr(at, next == std::string::npos ? next : next - at));
    at = next;
  }
  return out;
}

TEST(Collectives, AccessesToPeersAreOfSystemScope) {
  GpuCode code = compileFor(*lookupGpu("sm_120a"), [](KernelSite site) {
    collectiveSuite(site);
    oneOfEach(site, among(8));
  });
  std::vector<std::string> kernels = kernelsIn(code.ptx);
  EXPECT_EQ(kernels.size(), p2p::kernelCount + 5);
  for (const std::string &kernel : kernels) {
    std::string name = kernel.substr(0, kernel.find('('));
    if (name.find("all_") == std::string::npos &&
        name.find("merge_") == std::string::npos)
      continue; // Those that exchange nothing.
    int accesses = 0;
    for (const std::string &line : narrowAccesses(kernel, accesses))
      ADD_FAILURE() << name << ": " << line;
    // At least a store to and a load from each rank, and the counter.
    EXPECT_GE(accesses, 18) << name;
    // The address that PTX calls "peer" is used with system scope everywhere.
    for (size_t at = kernel.find("[peer]"); at != std::string::npos;
         at = kernel.find("[peer]", at + 1)) {
      size_t line = kernel.rfind('\n', at) + 1;
      EXPECT_NE(kernel.substr(line, at - line).find(".sys."),
                std::string::npos)
          << name << ": " << kernel.substr(line, at - line + 6);
    }
  }
}

/// The check above does find what it looks for.
TEST(Collectives, NarrowAccessesAreFound) {
  std::string kernel = "ld.param.b64 %rd1, [k_param_0];\n"
                       "ld.global.b32 %r1, [%rd1];\n"
                       "ld.global.b64 %rd2, [%rd1+40];\n"
                       "add.s64 %rd3, %rd2, 64;\n"
                       "st.relaxed.sys.global.b32 [%rd3], %r1;\n"
                       "st.global.b32 [%rd3], %r1;\n"
                       "ld.relaxed.gpu.global.b32 %r2, [%rd3+4];\n";
  int accesses = 0;
  EXPECT_EQ(narrowAccesses(kernel, accesses).size(), 2u);
  EXPECT_EQ(accesses, 3);
}

//===--- What the runtime carries ---------------------------------------------===//

TEST(Collectives, FilesKernelsAreWhatIsMadeNow) {
  GpuCode code = compileFor(anyGpu(), collectiveSuite);
  ASSERT_FALSE(code.ptx.empty());
  EXPECT_NE(code.ptx.find(".target sm_90\n"), std::string::npos);
  if (std::getenv("MLA_WRITE_COLLECTIVES_PTX"))
    std::ofstream(MLA_COLLECTIVES_PTX) << code.ptx;
  std::ifstream file(MLA_COLLECTIVES_PTX);
  std::string kept{std::istreambuf_iterator<char>(file), {}};
  EXPECT_TRUE(kept == code.ptx)
      << MLA_COLLECTIVES_PTX << " is stale: see the head of this file";
}

/// What the runtime knows of them without asking.
TEST(Collectives, RuntimesTableIsRight) {
  ExchangeSpec with;
  EXPECT_EQ(with.layout.bytes(true), int64_t(p2p::exchangeBytes));
  EXPECT_EQ(with.layout.blocks, p2p::mostBlocks);
  std::vector<std::string> names;
  makeFor(anyGpu(), collectiveSuite, [&](mlir::ModuleOp kernels) {
    kernels.walk([&](mlir::LLVM::LLVMFuncOp function) {
      if (!function.isExternal())
        names.push_back(function.getName().str());
      for (const p2p::KernelInfo &info : p2p::kernelTable) {
        if (function.getName() != info.name)
          continue;
        EXPECT_EQ(function.getNumArguments(),
                  unsigned(info.buffers + (info.exchanges ? 3 : 0)))
            << info.name;
      }
    });
  });
  ASSERT_EQ(names.size(), p2p::kernelCount);
  for (size_t i = 0; i < names.size(); ++i)
    EXPECT_EQ(names[i], p2p::kernelTable[i].name);
}

TEST(Collectives, SuiteAssemblesForOldAndNew) {
  if (findPtxas().empty())
    GTEST_SKIP() << "no ptxas";
  for (const char *name : {"sm_90", "sm_120"}) {
    Gpu gpu = anyGpu();
    gpu.name = name;
    GpuCode code = compileFor(gpu, collectiveSuite);
    EXPECT_FALSE(code.cubin.empty()) << name;
    EXPECT_EQ(code.resources.size(), p2p::kernelCount);
    for (const KernelResources &r : code.resources) {
      EXPECT_EQ(r.spillBytes, 0) << r.kernel << " on " << name;
      EXPECT_LE(r.sharedBytes, int64_t(p2p::sharedBytes)) << r.kernel;
    }
  }
}

} // namespace
