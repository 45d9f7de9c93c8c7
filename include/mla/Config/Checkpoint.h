//===- Checkpoint.h - what the safetensors files hold -----------*- C++ -*-===//
//
// Part of mla. The headers of all shards of a model folder, checked: every
// tensor lies inside its file, none overlaps another, every shard that the
// index names exists. Only headers are read; tensor bytes are not touched.
//
//===----------------------------------------------------------------------===//
#ifndef MLA_CONFIG_CHECKPOINT_H
#define MLA_CONFIG_CHECKPOINT_H

#include "mla/Support/Hash.h"
#include "mla/Support/Status.h"
#include <cstdint>
#include <filesystem>
#include <set>
#include <string>
#include <string_view>
#include <unordered_map>
#include <vector>

namespace mla {

/// One tensor of a safetensors file.
struct TensorInfo {
  std::string name;  ///< as in the file
  std::string dtype; ///< as in the file: "F32", "BF16", "F8_E4M3", "U8", ...
  std::vector<int64_t> shape;
  uint32_t file = 0;   ///< index into Checkpoint::files
  uint64_t offset = 0; ///< from the start of the file, in bytes
  uint64_t bytes = 0;
};

/// One shard.
struct CheckpointFile {
  std::string name;         ///< relative to the folder
  uint64_t size = 0;        ///< of the whole file
  uint64_t headerBytes = 0; ///< 8 + length of the JSON
  uint64_t headerHash = 0;  ///< FNV-1a 64 of these bytes
};

class Checkpoint {
public:
  // It holds references into itself, which only a move keeps.
  Checkpoint(Checkpoint &&) = default;
  Checkpoint &operator=(Checkpoint &&) = default;

  /// Reads the headers of every *.safetensors file in `folder` and, if there
  /// is one, model.safetensors.index.json. The index may list fewer tensors
  /// than the shards hold; a shard that it names and that is missing, a shard
  /// shorter than its header says, or a tensor in two shards is an error that
  /// names every file concerned.
  static Result<Checkpoint> open(const std::filesystem::path &folder);

  /// The tensor `name`, given without the "language_model." prefix that
  /// multimodal checkpoints put before text tensors; null if absent.
  const TensorInfo *find(std::string_view name) const;
  /// The bytes of a small tensor of this checkpoint (at most 1 MiB), for scales
  /// and the like.
  Result<std::string> read(const TensorInfo &tensor) const;
  /// `name` without that prefix.
  static std::string_view textName(std::string_view name);
  /// The number of the layer that a text tensor belongs to, or -1.
  static int64_t layerOf(std::string_view textName);
  const std::vector<TensorInfo> &tensors() const { return all; }
  const std::vector<CheckpointFile> &files() const { return shards; }
  const std::filesystem::path &folder() const { return root; }

private:
  class Faults;
  Checkpoint() = default;
  void readShards(const std::vector<std::string> &names, Faults &faults);
  Status checkIndex(std::set<std::string> &missing, Faults &faults) const;

  std::filesystem::path root;
  std::vector<CheckpointFile> shards;
  std::vector<TensorInfo> all;
  std::unordered_map<std::string_view, const TensorInfo *> byName;
};

/// Bytes of one element of a safetensors dtype; 0 if the dtype is unknown.
uint64_t safetensorsElementBytes(const std::string &dtype);

/// Parses one safetensors header (the JSON text) of a file of `fileSize` bytes;
/// `headerBytes` is 8 + the length of the JSON. Exposed for tests.
Result<std::vector<TensorInfo>> parseSafetensorsHeader(std::string_view json,
                                                       uint64_t headerBytes,
                                                       uint64_t fileSize,
                                                       const std::string &name);

} // namespace mla

#endif // MLA_CONFIG_CHECKPOINT_H
