//===- Plan.h - what the compiler hands to the runtime ----------*- C++ -*-===//
//
// Part of mla. The plan is the only place where compiler and runtime meet. In
// memory it is this structure; on disk it is a folder with plan.json, the
// kernels and the tokenizer's files (docs/plan-format.md). This library links
// neither MLIR nor a device runtime.
//
//===----------------------------------------------------------------------===//
#ifndef MLA_PLAN_PLAN_H
#define MLA_PLAN_PLAN_H

#include "mla/Plan/Expr.h"
#include "mla/Support/Format.h"
#include "mla/Support/Status.h"
#include <cstdint>
#include <filesystem>
#include <optional>
#include <string>
#include <variant>
#include <vector>

namespace mla::plan {

/// Version of the format. A reader takes plans of its own major version whose
/// minor version is not above its own.
constexpr int64_t formatMajor = 2;
constexpr int64_t formatMinor = 0;

/// Version of the calling convention of host kernels:
///   void kernel(const uint64_t *args, int64_t begin, int64_t end)
/// args[i] is the address of a buffer, the address of a table of addresses (a
/// stacked weight, or a weight in parts), or an int64 scalar, as the kernel's
/// signature says; the call does the work items begin <= i < end of the launch's grid.
constexpr int64_t hostKernelAbi = 1;

/// Version of the calling convention of CUDA kernels. A kernel has one 8-byte
/// parameter for each entry of its signature: a device address or an int64. The
/// grid counts blocks of Kernel::threads threads, in one dimension, with
/// Kernel::sharedBytes bytes of dynamic shared memory. Every block executes
/// griddepcontrol.wait before it touches what an earlier launch wrote or may
/// read, and before it ends.
constexpr int64_t cudaKernelAbi = 1;

/// Tokens in one page of the cache.
constexpr int64_t pageTokens = 64;

/// The machine that the kernels were generated for.
struct Target {
  std::string name;                  ///< "host", "sm_90a", "sm_120a"
  std::string cpu;                   ///< "x86-64-v3"; "" for a GPU
  std::vector<std::string> features; ///< CPU features needed, "avx2", "fma"...
  int64_t kernelAbi = hostKernelAbi;

  bool isHost() const { return name == "host"; }
};

/// What the runtime must know of the model.
struct Model {
  std::string architecture;
  int64_t vocabSize = 0;
  int64_t layers = 0;
  int64_t hiddenSize = 0;
  int64_t maxPositions = 0;
  std::optional<int64_t> bosToken;
  std::vector<int64_t> eosTokens;
};

/// The ranks that run the model together. All have the same programs and kernels;
/// a rank differs from the others in its parts of the weights (Weight::shard) and
/// in the value of the symbol `rank`.
struct Ranks {
  enum class Collectives {
    Exchange, ///< data are exchanged between the ranks
    Local     ///< nothing is: only the time that a rank takes means something
  };
  int64_t count = 1;
  Collectives collectives = Collectives::Exchange;
  /// How the model is divided, for people: "attention tp8, experts tp4xep2".
  std::string layout;
  /// `count` if the tokens of the caches are spread over the ranks, block by block
  /// of pageTokens: block b of a sequence is on rank b % count. A page number then
  /// stands for one page on each rank, for so many blocks in a row. Otherwise 1:
  /// every rank has all of them.
  int64_t pageRanks = 1;

  bool isOne() const { return count == 1; }
};

/// Where weight bytes come from.
struct CheckpointFile {
  std::string name; ///< relative to the checkpoint's folder
  uint64_t size = 0;
  uint64_t headerBytes = 0;
  uint64_t headerHash = 0; ///< FNV-1a 64 of the first headerBytes bytes
};
struct Checkpoint {
  enum class Kind {
    None,       ///< compiled with --no-weights: the plan cannot be run
    Safetensors,
    Synthetic   ///< a function of name, index and seed (docs/synthetic.md)
  };
  Kind kind = Kind::None;
  std::string folder; ///< Safetensors: absolute path when compiled
  std::vector<CheckpointFile> files;
  int64_t seed = 0; ///< Synthetic
};

/// One checkpoint tensor inside a weight buffer.
struct TensorSource {
  std::string tensor;  ///< Hugging Face name without "language_model."
  uint32_t file = 0;   ///< Safetensors: index into Checkpoint::files
  uint64_t offset = 0; ///< Safetensors: bytes from the start of the file
};

/// Scales that stand beside the values of a weight.
struct WeightScales {
  std::vector<TensorSource> sources; ///< as many as Weight::sources
  /// The checkpoint holds reciprocals, in f32; the runtime inverts them.
  bool reciprocal = false;
};

/// How the matrices of a weight lie in device memory.
enum class Layout {
  Checkpoint, ///< as the files have them, tensor by tensor, in parts
  Rows,       ///< one buffer: [tensors,] rows, columns, elements that stand alone
  Packed      ///< one buffer of matrices as quant::pack() makes them
};

/// What each of the ranks has of a weight: in every dimension the part
/// [index * part, (index + 1) * part), index counting from 0. What lies beyond the
/// whole is zero, so that sizes need not divide: 4 heads among 3 ranks are 2, 2
/// and none.
struct Shard {
  struct Split {
    int64_t dim = 0;    ///< of `whole`
    int64_t count = 1;  ///< of parts
    int64_t stride = 1; ///< ranks in a row that have the same part
  };
  std::vector<int64_t> whole; ///< shape of the checkpoint's tensors: [tensors,]
                              ///< rows, columns
  std::vector<int64_t> part;  ///< shape of what a rank has
  std::vector<Split> splits;  ///< at most one for a dimension

  /// Where the part of `rank` begins in dimension `dim`.
  int64_t first(int64_t dim, int64_t rank) const;
};

/// Which part of a checkpoint matrix a weight's matrix [R, C] is, for layouts
/// that are made when the plan is loaded. A vector is a matrix of one row. With a
/// shard, "the checkpoint's tensor" is the rank's part of it.
///
/// `blocks` runs of `blockRows` rows, the first at `firstRow`, each `rowStride`
/// below the one before, are taken from `firstColumn` on. Not transposed,
/// R = blocks * blockRows, and row b * blockRows + i is row firstRow + b *
/// rowStride + i. Transposed (the key half of kv_b, head by head), C = blockRows,
/// R = blocks * W, and element [b * W + j, i] is element [firstRow + b * rowStride
/// + i, firstColumn + j].
struct Slice {
  Format format = Format::F32;   ///< of the checkpoint's tensor
  int64_t rows = 0, columns = 0; ///< of the checkpoint's tensor
  int64_t firstRow = 0, firstColumn = 0;
  int64_t blocks = 1, blockRows = 0, rowStride = 0;
  bool transposed = false;
};

/// A weight: constant device memory. With `stacked`, the first dimension counts
/// tensors (experts), and `sources` has one for each; otherwise there is exactly
/// one. In a format that consists of parts (storageParts()), `sources` are those
/// of the values and `scales` has an entry for each further part.
struct Weight {
  std::string name;
  Format format = Format::F32;
  std::vector<int64_t> shape;
  bool stacked = false;
  std::vector<TensorSource> sources;
  std::vector<WeightScales> scales = {};
  Layout layout = Layout::Checkpoint;
  /// Of each tensor; only with another layout than Checkpoint. `format` then says
  /// what is in device memory: slice.format, or bf16 or f32, to which any other
  /// is converted at load (as it must be to be transposed, if it has scales).
  Slice slice = {};
  /// With several ranks: `shape`, with Layout::Checkpoint, is then that of the part,
  /// and `sources` are those of the whole.
  std::optional<Shard> shard = {};

  /// Whether a kernel receives a table of addresses: of all parts of the first
  /// tensor, then of the next.
  bool isTable() const {
    return layout == Layout::Checkpoint && (stacked || !scales.empty());
  }
  /// Of a tensor of the checkpoint.
  Format storedFormat() const {
    return layout == Layout::Checkpoint ? format : slice.format;
  }
  /// The matrix of one tensor: the last dimension counts columns, the others
  /// (without that which counts tensors) rows.
  int64_t matrixRows() const;
  int64_t matrixColumns() const;
  /// The shape of one of the checkpoint's tensors as a matrix.
  int64_t storedRows() const;
  int64_t storedColumns() const;
  /// What one tensor of the checkpoint consists of.
  std::vector<StoragePart> parts() const;
  /// Bytes in device memory, of all tensors; of a weight that verify() accepts.
  /// A stack of packed matrices has packedBytes() for each (mla/Quant/Pack.h).
  Result<uint64_t> deviceBytes() const;
  /// The sources of part `index`.
  const std::vector<TensorSource> &partSources(size_t index) const {
    return index == 0 ? sources : scales[index - 1].sources;
  }
};

/// A paged cache, [capacity, pageTokens, width] of `format`. One page number
/// names the same page in every cache, and with Ranks::pageRanks on every rank.
struct Cache {
  std::string name;
  Format format = Format::F32;
  int64_t width = 0; ///< values of one token
  std::string kind = {}; ///< "expanded", "latent", "index"; "" if not known
};

/// Scratch memory of a program, at a fixed offset of its arena.
struct Workspace {
  /// The value of the graph that it holds, the same for every target
  /// ("layers.0.self_attn.o_proj:0"), or "wN" if it holds none.
  std::string name;
  Format format = Format::F32;
  std::vector<Expr> shape;
  uint64_t offset = 0; ///< bytes; a multiple of 64
};

/// The closed set of step inputs and outputs.
enum class Port {
  Ids,       ///< i32 [tokens]: token ids
  Positions, ///< i32 [tokens]: position in its sequence, from 0
  Sequence,  ///< i32 [tokens]: row of the page table
  PageTable, ///< i32 [sequences, pages]: page numbers, in order
  Outputs,   ///< i32 [outputs]: tokens whose logits are wanted
  Saturated, ///< i32 [tokens]: zeros, to which kernels add the number of a
             ///< token's values that were beyond the range of an FP8 cache
  Logits,    ///< f32 [outputs, vocab]: the result
  // Of Plan::sampling alone, which reads the logits, too:
  Sampling, ///< f32 [outputs, 4]: temperature (0: the largest logit), top-p,
            ///< min-p, and a random number from 0 to below 1
  TopK,     ///< i32 [outputs]: how many to keep, 0 for all
  Sampled   ///< i32 [outputs]: the ids chosen; below 0 if there is NaN or +inf
            ///< among the logits, or nothing above -inf
};
constexpr size_t portCount = 10;
std::string_view portName(Port port);
Format portFormat(Port port);
/// What launches of a step, or of Plan::sampling, do with `port`; nothing if they
/// may not name it.
enum class Access { Read, Write, ReadWrite };
std::optional<Access> portAccess(Port port, bool sampling);

/// One parameter of a kernel, checked against what a launch passes.
struct Parameter {
  enum class Kind { Buffer, Table, Scalar, Peers };
  Kind kind = Kind::Buffer;
  Format format = Format::F32;  ///< Buffer, Table
  Access access = Access::Read; ///< Buffer
};

/// What N ranks exchange. x and y are row-major matrices of f32 with `rows` rows;
/// x[r] is row r. Parameters, for each of them: (read f32 x, write f32 y, scalar rows,
/// scalar columns of x, scalar columns of y), in a grid of 1.
enum class Collective {
  None,
  /// y = sum of x over the ranks, added in the order of the ranks; equal columns.
  AllReduce,
  /// y[r] = [x[r] of rank 0 | x[r] of rank 1 | ...], as far as y has columns.
  AllGather,
  /// y[r] = part `rank` of the columns of that sum, each as wide as y; what lies
  /// beyond the columns of x is zero.
  ReduceScatter,
  /// y[r] = [part `rank` of x[r] of rank 0 | of x[r] of rank 1 | ...]; N divides the
  /// columns, of which x and y have as many.
  AllToAll
};
constexpr size_t collectiveCount = 5;
std::string_view collectiveName(Collective collective);
/// Nothing if `name` is none of a collective ("none" is none).
std::optional<Collective> parseCollective(std::string_view name);

struct Kernel {
  std::string name; ///< symbol in the library
  std::vector<Parameter> parameters;
  int64_t threads = 0;     ///< of a block; 0 on the host
  int64_t sharedBytes = 0; ///< dynamic shared memory of a block
  /// Not None: no kernel of the library; the runtime's collectives do it.
  Collective collective = Collective::None;

  /// Whether it exchanges data with other ranks by itself.
  bool hasPeers() const;
};

/// What a launch passes for one parameter.
struct WeightRef { uint32_t index; };
struct CacheRef { uint32_t index; };
struct WorkspaceRef { uint32_t index; };
/// The table of the ranks' exchange memory (mla/Plan/Peers.h).
struct PeersRef {};
struct Argument {
  std::variant<WeightRef, CacheRef, WorkspaceRef, PeersRef, Port, Expr> value;
};

/// Runs work items (blocks, on a GPU) 0 <= i < grid of a kernel. A launch begins
/// when the one before it has ended; on a GPU its blocks may begin earlier
/// (programmatic dependent launch), since they wait themselves.
struct Launch {
  uint32_t kernel = 0;
  Expr grid;
  std::vector<Argument> arguments;
  std::string origin; ///< what it computes, for errors: "layers.3.q_b_proj"
  /// Bytes of weights that it reads, 0 if not known; for reports.
  Expr weightBytes = 0;
};

/// The launches of one step, for steps within the bucket's bounds.
struct Program {
  std::string name;
  int64_t maxTokens = 0;
  int64_t maxSequences = 0;
  int64_t maxOutputs = 0;
  uint64_t workspaceBytes = 0; ///< size of the arena at the bounds
  std::vector<Workspace> workspaces;
  std::vector<Launch> launches;
};

struct Plan {
  std::string producer; ///< "mla 0.1.0"
  Target target;
  Model model;
  Ranks ranks;
  Checkpoint checkpoint;
  std::string library; ///< file name of the kernels, inside the plan's folder
  uint64_t libraryHash = 0; ///< FNV-1a 64 of its bytes
  /// For a GPU the library is PTX, and this the same kernels assembled, "" if no
  /// assembler was at hand: the driver then compiles the PTX.
  std::string binary;
  uint64_t binaryHash = 0;
  std::vector<std::string> tokenizerFiles; ///< copied into the plan's folder
  std::vector<Weight> weights;
  std::vector<Cache> caches;
  std::vector<Kernel> kernels;
  /// Ascending maxTokens, then maxSequences, then maxOutputs, so that the first
  /// program that a step fits is the smallest.
  std::vector<Program> programs;
  /// Chooses ids from the logits that a program left, for up to maxOutputs rows.
  /// In it `tokens` is `outputs`, and `sequences` and `pages` are 1. Without it
  /// the host chooses.
  std::optional<Program> sampling;
  /// Device memory of each rank that other ranks' kernels reach; 0 if none do.
  uint64_t exchangeBytes = 0;
  int64_t maxPages = 0; ///< bound of the symbol `pages`: page numbers of the
                        ///< longest sequence

  /// Tokens of a sequence that one page number stands for.
  int64_t tokensOfPage() const { return pageTokens * ranks.pageRanks; }
};

/// Bytes of a buffer of `shape` at the given symbol values. Unsupported for the
/// formats that need scales beside them, which only weights have.
Result<uint64_t> bufferBytes(Format format, const std::vector<Expr> &shape,
                             const SymbolValues &symbols);

/// The plan as rank `rank` (from 0 to below the plan's number of ranks) loads it: no
/// weight has a shard. Instead its slice says what is cut from the checkpoint's
/// tensors, also with Layout::Checkpoint (then blocks is 1 and the columns are
/// those of `shape`); rows and columns of a slice may lie beyond the tensor's and
/// are zero there. `sources` are those of the rank's tensors; one without a name
/// stands for a tensor of zeros. `plan` must have passed verify(); the result
/// is not to be verified or written.
Plan localized(const Plan &plan, int64_t rank);

/// The symbol values at the bounds of `program`. `capacity` has no bound in a
/// program; here it is enough pages for every sequence at its longest.
SymbolValues bounds(const Plan &plan, const Program &program);

/// Weights that are arranged when the plan is loaded begin at multiples of this.
constexpr uint64_t weightAlignment = 256;

/// Bytes of the memory behind `port` in the largest step of any program.
Result<uint64_t> portBytes(const Plan &plan, Port port);

/// What a plan takes of a device's memory; the cache is as large as is asked for.
struct MemoryBytes {
  uint64_t weights = 0;       ///< on the host those of the files, as mapped
  uint64_t workspace = 0;     ///< of the largest program; they take turns
  uint64_t ports = 0;         ///< inputs and outputs of a step
  uint64_t cachePerToken = 0; ///< of all caches, on a rank that has the token
};
Result<MemoryBytes> memoryBytes(const Plan &plan);

/// Everything that must hold of a plan apart from its files: references in
/// range, launches that match signatures, workspaces that lie inside the arena
/// and that do not overlap while both are live, nothing read before it is
/// written, sizes that do not overflow. Called by write() and read().
Status verify(const Plan &plan);

/// FNV-1a 64 of the bytes of a file, for Plan::libraryHash.
Result<uint64_t> hashFile(const std::filesystem::path &file);

/// Writes plan.json into `folder`, which exists and holds the other files.
Status write(const Plan &plan, const std::filesystem::path &folder);

/// Reads and verifies `folder`/plan.json and checks that the files it names
/// exist inside the folder (no absolute paths, no "..", no symbolic link out)
/// and that the library has its hash.
/// Any corruption ends in an error that names file, place, expected and found.
Result<Plan> read(const std::filesystem::path &folder);

/// As read(), from text; for tests. Files are not looked at.
Result<Plan> parse(std::string_view json, const std::string &name);
/// The text that write() writes.
std::string print(const Plan &plan);

} // namespace mla::plan

#endif // MLA_PLAN_PLAN_H
