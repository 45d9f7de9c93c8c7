//===- SafetensorsWriter.h - writes tensors in bounded memory ---*- C++ -*-===//
//
// Part of mla. Names, dtypes and shapes are given before any data, so that the
// header comes first and every byte has its place: tensors may then be written
// in pieces, in any order, by several threads.
//
// In a file the tensors of larger elements come first. Each tensor is so
// aligned to its elements, whatever its neighbours' sizes, and can be used
// where it is mapped.
//
//===----------------------------------------------------------------------===//
#ifndef MLA_CONFIG_SAFETENSORSWRITER_H
#define MLA_CONFIG_SAFETENSORSWRITER_H

#include "mla/Support/Status.h"
#include <cstddef>
#include <cstdint>
#include <filesystem>
#include <memory>
#include <span>
#include <string>
#include <vector>

namespace mla {

/// A tensor that will be written.
struct TensorSpec {
  std::string name;
  std::string dtype; ///< as safetensors spells it: "BF16", "F8_E4M3", "U8"
  std::vector<int64_t> shape;
  /// Product of the shape and the dtype's size; 0 if the dtype is unknown.
  uint64_t bytes() const;
};

/// One file. It is created at the first write and closed when its last byte is
/// written.
class SafetensorsFile {
public:
  SafetensorsFile(std::filesystem::path path, std::span<const TensorSpec>);
  SafetensorsFile(const SafetensorsFile &) = delete;
  ~SafetensorsFile();

  /// Of the whole file, in bytes.
  uint64_t size() const { return end; }
  /// Writes `bytes` at `offset` of tensor number `tensor`. Any thread may; no
  /// byte may be written twice. Io with the path, Invalid if it would pass the
  /// tensor's end.
  Status write(size_t tensor, uint64_t offset,
               std::span<const std::byte> bytes);
  /// Fails unless every byte was written. Writes a file without tensors.
  Status finish();

private:
  Status open();
  struct State;
  const std::filesystem::path path;
  std::string header;
  std::vector<uint64_t> starts, sizes; ///< of each tensor, in the file
  uint64_t end = 0;
  std::unique_ptr<State> state;
};

/// Shards in a folder: model-00001-of-00003.safetensors and so on, or
/// model.safetensors if there is one, with model.safetensors.index.json.
class SafetensorsWriter {
public:
  /// Fills shards in the order of `tensors`; none is larger than `shardBytes`
  /// of tensor data unless one tensor is. Touches no file. Invalid for a name
  /// that occurs twice and for an unknown dtype.
  static Result<SafetensorsWriter> create(const std::filesystem::path &folder,
                                          std::vector<TensorSpec> tensors,
                                          uint64_t shardBytes);

  const std::vector<TensorSpec> &tensors() const { return specs; }
  size_t shards() const { return files.size(); }
  /// Of all shards, headers included.
  uint64_t totalBytes() const;
  /// As SafetensorsFile::write().
  Status write(size_t tensor, uint64_t offset,
               std::span<const std::byte> bytes);
  /// Fails unless every byte was written; writes the index.
  Status finish();

private:
  struct Place {
    size_t file, tensor;
  };
  std::filesystem::path folder;
  std::vector<TensorSpec> specs;
  std::vector<Place> places; ///< of each tensor
  std::vector<std::string> names;
  std::vector<std::unique_ptr<SafetensorsFile>> files;
};

} // namespace mla

#endif // MLA_CONFIG_SAFETENSORSWRITER_H
