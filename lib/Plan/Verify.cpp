//===- Verify.cpp - checks of a plan, outside its programs ----------------===//
//
// Part of mla. docs/plan-format.md lists the rules; the programs' are in
// VerifyProgram.cpp.
//
//===----------------------------------------------------------------------===//
#include "Verifier.h"
#include <algorithm>

namespace mla::plan::detail {

Status verify(const Plan &plan, const std::string &file) {
  return Verifier(plan, file).run();
}

Status Verifier::run() {
  text(plan.producer, "/producer");
  target();
  model();
  ranks();
  checkpoint();
  files();
  weights();
  caches();
  kernels();
  programs();
  sampling();
  return count ? invalid(std::move(messages)) : Status();
}

void Verifier::fail(const std::string &at, const std::string &message) {
  constexpr size_t limit = 16; // One mistake often causes many.
  if (++count > limit)
    return;
  if (count > 1)
    messages += "\n";
  messages += (file.empty() ? "" : file + ": ") + "at " + at + ": " + message;
}

void Verifier::uniqueName(const std::string &name, const std::string &at,
                          std::unordered_set<std::string_view> &seen) {
  if (!isName(name))
    fail(at, "expected a name of 1 to 255 printable ASCII characters without "
             "spaces, found " +
                 quote(name));
  else if (!seen.insert(name).second)
    fail(at, "expected a name that is not taken, found " + quote(name) +
                 " a second time");
}

void Verifier::text(const std::string &value, const std::string &at) {
  if (!isText(value))
    fail(at, "expected at most " + std::to_string(maxTextBytes) +
                 " bytes of UTF-8 without control characters, found " +
                 quote(value));
}

void Verifier::range(int64_t value, int64_t low, int64_t high,
                     const std::string &at) {
  if (value < low || value > high)
    fail(at, "expected an integer from " + std::to_string(low) + " to " +
                 std::to_string(high) + ", found " + std::to_string(value));
}

void Verifier::target() {
  const Target &t = plan.target;
  if (!isName(t.name))
    fail("/target/name",
         "expected the name of a target, found " + quote(t.name));
  else if (!t.isHost() && !t.name.starts_with("sm_"))
    fail("/target/name", "expected \"host\" or a GPU (\"sm_...\"), found " +
                             quote(t.name));
  text(t.cpu, "/target/cpu");
  for (size_t i = 0; i < t.features.size(); ++i)
    if (!isName(t.features[i]))
      fail("/target/features/" + std::to_string(i),
           "expected the name of a CPU feature, found " + quote(t.features[i]));
  int64_t abi = t.isHost() ? hostKernelAbi : cudaKernelAbi;
  if (t.kernelAbi != abi)
    fail("/target/kernel_abi",
         "expected kernel ABI " + std::to_string(abi) + ", found " +
             std::to_string(t.kernelAbi) + ": compile the plan anew");
}

void Verifier::model() {
  const Model &m = plan.model;
  text(m.architecture, "/model/architecture");
  range(m.vocabSize, 1, maxStep, "/model/vocab_size");
  range(m.layers, 1, maxStep, "/model/layers");
  range(m.hiddenSize, 1, maxStep, "/model/hidden_size");
  range(m.maxPositions, 1, maxStep, "/model/max_positions");
  if (m.vocabSize < 1)
    return; // The ranges below would be empty.
  if (m.bosToken)
    range(*m.bosToken, 0, m.vocabSize - 1, "/model/bos_token");
  for (size_t i = 0; i < m.eosTokens.size(); ++i)
    range(m.eosTokens[i], 0, m.vocabSize - 1,
          "/model/eos_tokens/" + std::to_string(i));
}

void Verifier::ranks() {
  const Ranks &r = plan.ranks;
  bool peers = std::any_of(plan.kernels.begin(), plan.kernels.end(),
                           [](const Kernel &k) { return k.hasPeers(); });
  if (peers && (r.count == 1 || plan.target.isHost()))
    fail("/kernels", "expected no kernel with \"peers\" in a plan for one rank "
                     "or for the host, found one");
  if (peers ? plan.exchangeBytes == 0 || plan.exchangeBytes > maxInteger
            : plan.exchangeBytes != 0)
    fail("/exchange_bytes",
         peers ? "expected from 1 to 2^53 - 1 bytes for kernels with \"peers\", "
                 "found " +
                     std::to_string(plan.exchangeBytes)
               : "expected none without kernels with \"peers\", found " +
                     std::to_string(plan.exchangeBytes));
  range(r.count, 1, maxRanks, "/ranks/count");
  text(r.layout, "/ranks/layout");
  // plan.json has no place for them.
  if (r.count == 1 &&
      (r.collectives != Ranks::Collectives::Exchange || !r.layout.empty()))
    fail("/ranks", "expected several ranks, found one");
  if (r.pageRanks != 1 && r.pageRanks != r.count)
    fail("/ranks/page_ranks", "expected 1 or all " + std::to_string(r.count) +
                                  " ranks, found " +
                                  std::to_string(r.pageRanks));
}

void Verifier::checkpoint() {
  const Checkpoint &c = plan.checkpoint;
  if (c.kind != Checkpoint::Kind::Safetensors) {
    // plan.json has no place for these, so they would be lost.
    if (!c.folder.empty() || !c.files.empty())
      fail("/checkpoint", "expected neither folder nor files in a checkpoint "
                          "of kind " +
                              std::string(checkpointKindName(c.kind)));
  }
  if (c.kind == Checkpoint::Kind::Synthetic)
    range(c.seed, 0, static_cast<int64_t>(maxInteger), "/checkpoint/seed");
  else if (c.seed != 0)
    fail("/checkpoint", "expected no seed in a checkpoint of kind " +
                            std::string(checkpointKindName(c.kind)));
  if (c.kind != Checkpoint::Kind::Safetensors)
    return;

  if (!isText(c.folder) || !std::filesystem::path(c.folder).is_absolute())
    fail("/checkpoint/folder",
         "expected an absolute path, found " + quote(c.folder));
  std::unordered_set<std::string_view> seen;
  for (size_t i = 0; i < c.files.size(); ++i) {
    const CheckpointFile &f = c.files[i];
    std::string at = "/checkpoint/files/" + std::to_string(i);
    if (!isPlainFileName(f.name))
      fail(at + "/name", "expected a plain file name, found " + quote(f.name));
    else if (!seen.insert(f.name).second)
      fail(at + "/name", "expected a name that is not taken, found " +
                             quote(f.name) + " a second time");
    if (f.size > maxInteger)
      fail(at + "/size",
           "expected less than 2^53 bytes, found " + std::to_string(f.size));
    if (f.headerBytes < 8 || f.headerBytes > f.size)
      fail(at + "/header_bytes", "expected from 8 to the file's " +
                                     std::to_string(f.size) + " bytes, found " +
                                     std::to_string(f.headerBytes));
  }
}

void Verifier::files() {
  std::unordered_set<std::string_view> seen = {planFile};
  auto check = [&](const std::string &name, const std::string &at) {
    if (!isPlainFileName(name))
      fail(at, "expected a plain file name, found " + quote(name));
    else if (!seen.insert(name).second)
      fail(at, "expected a name that is not taken, found " + quote(name) +
                   " a second time");
  };
  check(plan.library, "/library/file");
  if (plan.binary.empty() ? plan.binaryHash != 0 : plan.target.isHost())
    fail("/library/binary", plan.binary.empty()
                                ? "expected a file for its hash, found none"
                                : "expected none for the host, found " +
                                      quote(plan.binary));
  if (!plan.binary.empty())
    check(plan.binary, "/library/binary");
  for (size_t i = 0; i < plan.tokenizerFiles.size(); ++i)
    check(plan.tokenizerFiles[i], "/tokenizer/" + std::to_string(i));
}

void Verifier::weights() {
  std::unordered_set<std::string_view> seen;
  uint64_t sources = 0;
  for (size_t i = 0; i < plan.weights.size(); ++i) {
    uniqueName(plan.weights[i].name, "/weights/" + std::to_string(i) + "/name",
               seen);
    sources += plan.weights[i].sources.size();
    for (const WeightScales &scales : plan.weights[i].scales)
      sources += scales.sources.size();
    weight(i);
  }
  if (sources > maxSources)
    fail("/weights", "expected at most " + std::to_string(maxSources) +
                         " checkpoint tensors, found " +
                         std::to_string(sources));
}

void Verifier::weight(size_t index) {
  const Weight &w = plan.weights[index];
  std::string at = "/weights/" + std::to_string(index);
  if (w.shape.size() > maxRank || (w.stacked && w.shape.empty()))
    return fail(at + "/shape",
                "expected from " + std::to_string(w.stacked ? 1 : 0) + " to " +
                    std::to_string(maxRank) + " dimensions, found " +
                    std::to_string(w.shape.size()));
  // Elements of all, and of one source.
  uint64_t total = 1, each = 1;
  bool overflow = false;
  for (size_t i = 0; i < w.shape.size(); ++i) {
    if (w.shape[i] < 1 || w.shape[i] > static_cast<int64_t>(maxInteger))
      return range(w.shape[i], 1, static_cast<int64_t>(maxInteger),
                   at + "/shape/" + std::to_string(i));
    uint64_t n = static_cast<uint64_t>(w.shape[i]);
    overflow |= __builtin_mul_overflow(total, n, &total);
    if (!w.stacked || i > 0)
      overflow |= __builtin_mul_overflow(each, n, &each);
  }
  uint64_t element = elementBytes(w.format).value_or(1), bytes = 0;
  if (overflow || __builtin_mul_overflow(total, element, &bytes) ||
      bytes > maxInteger)
    return fail(at + "/shape", "expected less than 2^53 bytes, found more");
  size_t before = count;
  shard(w, at + "/shard");
  if (count != before)
    return;
  layout(w, at);
  if (count != before)
    return;
  int64_t group = scaleGroup(w.format);
  bool wholeGroups = w.format == Format::NVFP4 || w.format == Format::Int4G32;
  if (group > 1 && w.shape.size() < (w.stacked ? 3 : 2))
    return fail(at + "/shape", "expected a matrix in the format " +
                                   std::string(formatName(w.format)) +
                                   ", found fewer dimensions");
  if (wholeGroups && w.shape.back() % group != 0)
    return fail(at + "/shape", "expected columns in groups of " +
                                   std::to_string(group) + ", found " +
                                   std::to_string(w.shape.back()));

  std::vector<StoragePart> parts = w.parts();
  if (w.scales.size() + 1 != parts.size())
    return fail(at, "expected " + std::to_string(parts.size()) + " parts of " +
                        quote(w.name) + " in " +
                        std::string(formatName(w.storedFormat())) + ", found " +
                        std::to_string(w.scales.size() + 1));
  int64_t tensors = !w.stacked ? 1 : w.shard ? w.shard->whole[0] : w.shape[0];
  auto wanted = static_cast<uint64_t>(tensors);
  for (size_t p = 0; p < parts.size(); ++p) {
    std::string where = at + (p ? "/" + std::string(parts[p].name) : "");
    const std::vector<TensorSource> &sources = w.partSources(p);
    if (sources.size() != wanted)
      return fail(where, "expected " + std::to_string(wanted) +
                             " checkpoint tensors for " + quote(w.name) +
                             ", found " + std::to_string(sources.size()));
    if (p && w.scales[p - 1].reciprocal && parts[p].name != "global")
      fail(where + "/reciprocal", "expected none but of a global scale");
    for (size_t i = 0; i < sources.size(); ++i)
      source(w, sources[i], parts[p].bytes(),
             where + (w.stacked ? "/stacked (tensor " + std::to_string(i) + ")"
                                : ""));
  }
}

void Verifier::source(const Weight &weight, const TensorSource &source,
                      uint64_t bytes, const std::string &at) {
  if (!isName(source.tensor))
    return fail(at,
                "expected the name of a tensor, found " + quote(source.tensor));
  if (plan.checkpoint.kind != Checkpoint::Kind::Safetensors) {
    if (source.file != 0 || source.offset != 0)
      fail(at, "expected neither file nor offset in a checkpoint of kind " +
                   std::string(checkpointKindName(plan.checkpoint.kind)));
    return;
  }
  const std::vector<CheckpointFile> &files = plan.checkpoint.files;
  if (source.file >= files.size())
    return fail(at, "expected a file from 0 to " +
                        std::to_string(files.size()) + " (exclusive), found " +
                        std::to_string(source.file));
  const CheckpointFile &f = files[source.file];
  if (source.offset < f.headerBytes || source.offset > f.size ||
      bytes > f.size - source.offset)
    fail(at, "expected tensor " + quote(source.tensor) + " between bytes " +
                 std::to_string(f.headerBytes) + " and " +
                 std::to_string(f.size) + " of " + quote(f.name) +
                 ", found offset " + std::to_string(source.offset) + " and " +
                 std::to_string(bytes) + " bytes");
}

void Verifier::caches() {
  std::unordered_set<std::string_view> seen;
  for (size_t i = 0; i < plan.caches.size(); ++i) {
    const Cache &c = plan.caches[i];
    std::string at = "/caches/" + std::to_string(i);
    uniqueName(c.name, at + "/name", seen);
    range(c.width, 1, maxStep, at + "/width");
    if (c.kind != "" && c.kind != "expanded" && c.kind != "latent" &&
        c.kind != "index")
      fail(at + "/kind", "expected \"expanded\", \"latent\" or \"index\", "
                         "found " +
                             quote(c.kind));
    if (!elementBytes(c.format))
      fail(at + "/format", "expected a format without block scales, found " +
                               std::string(formatName(c.format)));
  }
}

void Verifier::collective(const Kernel &kernel, const std::string &at) {
  if (plan.ranks.isOne())
    fail(at + "/collective", "expected a kernel of the library in a plan for "
                             "one rank, found " +
                                 std::string(collectiveName(kernel.collective)));
  std::string found;
  for (const Parameter &p : kernel.parameters)
    found += (found.empty() ? "" : ", ") + parameterText(p);
  const char *expected = "read f32, write f32, scalar, scalar, scalar";
  if (found != expected)
    fail(at + "/parameters", std::string("expected ") + expected +
                                 " of a collective, found " + quote(found));
}

void Verifier::kernels() {
  bool host = plan.target.isHost();
  for (size_t i = 0; i < plan.kernels.size(); ++i) {
    std::string at = "/kernels/" + std::to_string(i);
    const Kernel &k = plan.kernels[i];
    if (k.collective != Collective::None)
      collective(k, at);
    bool code = !host && k.collective == Collective::None;
    range(k.threads, code ? 1 : 0, code ? maxBlockThreads : 0, at + "/threads");
    range(k.sharedBytes, 0, code ? maxSharedBytes : 0, at + "/shared_bytes");
  }
  std::unordered_set<std::string_view> seen;
  for (size_t i = 0; i < plan.kernels.size(); ++i) {
    const std::string &name = plan.kernels[i].name;
    std::string at = "/kernels/" + std::to_string(i) + "/name";
    if (!isSymbol(name))
      fail(at, "expected a C identifier, found " + quote(name));
    else if (!seen.insert(name).second)
      fail(at, "expected a name that is not taken, found " + quote(name) +
                   " a second time");
  }
}

} // namespace mla::plan::detail
