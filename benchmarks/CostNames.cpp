//===- CostNames.cpp - what a kernel's name says --------------------------===//
//
// Part of mla.
//
//===----------------------------------------------------------------------===//
#include "CostNames.h"
#include <charconv>

namespace mla::cost {
namespace {

/// Reads a name from its front, part by part.
class Name {
public:
  explicit Name(std::string_view text) : rest(text) {}

  /// Whether the next parts are `word`; takes them.
  bool take(std::string_view word) {
    if (!rest.starts_with(word) ||
        (rest.size() > word.size() && rest[word.size()] != '_'))
      return false;
    rest.remove_prefix(std::min(rest.size(), word.size() + 1));
    return true;
  }
  std::optional<Format> format() {
    for (Format f : {Format::FP8Block, Format::FP8E4M3, Format::NVFP4,
                     Format::Int4G32, Format::BF16, Format::F16, Format::F32})
      if (take(formatName(f)))
        return f;
    return std::nullopt;
  }
  /// The next part if it is a number.
  std::optional<int64_t> number() {
    int64_t value = 0;
    auto [end, error] =
        std::from_chars(rest.data(), rest.data() + rest.size(), value);
    if (error != std::errc() ||
        (end != rest.data() + rest.size() && *end != '_'))
      return std::nullopt;
    rest.remove_prefix(std::min<size_t>(rest.size(), end - rest.data() + 1));
    return value;
  }
  std::vector<int64_t> numbers() {
    std::vector<int64_t> all;
    while (std::optional<int64_t> n = number())
      all.push_back(*n);
    return all;
  }
  /// The last part if it is a number.
  std::optional<int64_t> last() const {
    size_t at = rest.rfind('_');
    Name part(at == std::string_view::npos ? rest : rest.substr(at + 1));
    return part.number();
  }
  bool has(std::string_view part) const {
    std::string text = "_" + std::string(rest) + "_";
    return text.find("_" + std::string(part) + "_") != std::string::npos;
  }

private:
  std::string_view rest;
};

using Found = std::optional<Prediction>;

Prediction found(std::string family, std::string op, const Estimate &e) {
  return {std::move(family), std::move(op), e.seconds};
}
Prediction found(const std::string &family, const Estimate &e) {
  return {family, family, e.seconds};
}

Found linear(const Model &model, Name name, const std::string &family,
             const Step &step) {
  std::optional<Format> format = name.format();
  std::vector<int64_t> n = name.numbers();
  // Rows of each segment, columns, and the program's tokens but for `large`, which
  // has "n" there.
  size_t after = family == "linear_large" || family == "linear_f32" ? 1 : 2;
  if (!format || n.size() <= after)
    return std::nullopt;
  std::vector<Matrix> segments;
  int64_t columns = n[n.size() - after];
  for (size_t i = 0; i + after < n.size(); ++i)
    segments.push_back({*format, n[i], columns});
  // A head has a row for each sequence.
  int64_t tokens = name.has("outputs") ? step.sequences : step.tokens;
  if (family == "linear_stream")
    return found(family, "linear", model.linearStream(
                             segments, {name.has("norm"), name.has("exact")}));
  if (family == "linear_tile")
    return found(family, model.linearTile(segments, tokens));
  if (family == "linear_f32")
    return found(family, model.linearF32(segments, tokens));
  Prologue prologue{false, name.has("exact")};
  Estimate e = model.linearLarge(segments, tokens, prologue);
  e.seconds -= model.packRows(columns, tokens, prologue).seconds;
  return found(family, e);
}

Found attention(const Model &model, Name name, const std::string &family,
                const Step &step) {
  std::optional<Format> format = name.format();
  std::vector<int64_t> n = name.numbers();
  if (!format || n.size() < 3)
    return std::nullopt;
  Attention shape{n[0], n[1], n[2], *format};
  if (family == "combine_expand") {
    // Scale, splits and "one" stand between the shape and the values of a head.
    std::optional<int64_t> v = name.last();
    if (!v)
      return std::nullopt;
    return found(family, "attention",
                 model.attentionCombineExpand(shape, *v, step));
  }
  if (family == "latent_attention_prefill")
    return found(family, model.attentionPrefill(shape, step));
  // Prompts may be lowered as if they were decoded.
  const char *op = step.tokens > 8 * step.sequences ? "prompts, split" : "attention";
  Estimate combine = model.attentionCombine(shape, step);
  if (family == "latent_combine")
    return found(family, op, combine);
  Estimate e = model.attentionDecode(shape, step);
  e.seconds -= combine.seconds;
  return found(family, op, e);
}

Found experts(const Model &model, Name name, const std::string &family,
              const Step &step) {
  std::optional<Format> format = name.format();
  std::vector<int64_t> n = name.numbers();
  if (!format || n.size() < 4)
    return std::nullopt;
  bool down = family.starts_with("experts_down");
  int64_t inner = down ? n[1] : n[0], hidden = down ? n[0] : n[1];
  Experts shape{
      {*format, inner, hidden}, {*format, hidden, inner}, n[2], n[3], 0};
  if (family.ends_with("_one")) {
    shape.sharedRows = n.size() > 4 ? n[4] : 0;
    shape.chooses = name.has("sigmoid") || name.has("softmax");
    return found(family, "experts",
                 down ? model.expertsDownOne(shape)
                      : model.expertsGateUpOne(shape));
  }
  std::string kind = name.has("few") ? "_few" : "_many";
  return found(family + kind, "experts" + kind,
               down ? model.expertsDown(shape, step.tokens)
                    : model.expertsGateUp(shape, step.tokens));
}

/// Kernels of rows: bytes that a token reads and writes.
Found rows(const Model &model, Name name, const std::string &family,
           const Step &step) {
  name.format();
  std::vector<int64_t> n = name.numbers();
  int64_t bytes = 0;
  if (family == "latent_cache_write")
    bytes = 576 * 6;
  else if (n.empty())
    return std::nullopt;
  else if (family == "add" || family == "swiglu")
    bytes = 12 * n[0];
  else if (family == "rms_norm")
    bytes = 8 * n[0];
  else if (family == "embedding")
    bytes = 6 * n[0];
  else if (family == "repeat")
    bytes = n.size() > 1 ? 4 * n[0] * (1 + n[1]) : 8 * n[0];
  else
    bytes = 16 * n[0];
  int64_t tokens = family == "repeat" ? step.sequences : step.tokens;
  return found(family, model.rows(tokens, bytes));
}
} // namespace

Found predict(const Model &model, std::string_view text, const Step &step) {
  for (const char *family :
       {"linear_stream", "linear_tile", "linear_large", "linear_f32"})
    if (Name name(text); name.take(family))
      return linear(model, name, family, step);
  if (Name name(text); name.take("latent_attention_join")) {
    std::vector<int64_t> n = name.numbers(); // heads, latent
    if (n.size() < 2)
      return std::nullopt;
    return found("latent_attention_join",
                 model.rows(step.tokens, 12 * n[0] * n[1]));
  }
  for (const char *family : {"latent_attention_prefill", "latent_attention",
                             "latent_combine", "combine_expand"})
    if (Name name(text); name.take(family))
      return attention(model, name, family, step);
  for (const char *family : {"experts_gate_up_one", "experts_down_one",
                             "experts_gate_up", "experts_down"})
    if (Name name(text); name.take(family))
      return experts(model, name, family, step);
  if (Name name(text); name.take("pack_rows")) {
    name.format();
    std::vector<int64_t> n = name.numbers();
    if (n.empty())
      return std::nullopt;
    return found("pack_rows",
                 model.packRows(
                     n[0], name.has("outputs") ? step.sequences : step.tokens,
                     {name.has("norm"), name.has("exact")}));
  }
  if (Name name(text); name.take("absorb_query")) {
    std::vector<int64_t> n = name.numbers(); // heads, nope, rope, latent
    if (n.size() < 4)
      return std::nullopt;
    return found("heads", model.heads(n[0], {Format::BF16, n[3], n[1]},
                                      step.tokens));
  }
  if (Name name(text); name.take("expand_value")) {
    std::vector<int64_t> n = name.numbers(); // heads, v, latent
    if (n.size() < 3)
      return std::nullopt;
    return found("heads", model.heads(n[0], {Format::BF16, n[1], n[2]},
                                      step.tokens));
  }
  if (Name name(text); name.take("route")) {
    for (const char *word : {"sigmoid", "softmax", "noaux_tc",
                             "group_limited_greedy", "greedy"})
      name.take(word);
    std::vector<int64_t> n = name.numbers(); // experts, choices
    if (n.empty())
      return std::nullopt;
    return found("route", model.route(n[0], step.tokens));
  }
  if (Name name(text); name.take("moe_group")) {
    std::vector<int64_t> n = name.numbers(); // experts, choices
    if (n.size() < 2)
      return std::nullopt;
    Experts shape{{Format::BF16, 1, 1}, {Format::BF16, 1, 1}, n[0], n[1], 0};
    return found("moe_group", model.expertsGroup(shape, step.tokens));
  }
  if (Name name(text); name.take("moe_combine")) {
    std::vector<int64_t> n = name.numbers(); // width, choices
    if (n.size() < 2)
      return std::nullopt;
    Experts shape{
        {Format::BF16, 1, n[0]}, {Format::BF16, n[0], 1}, n[1], n[1], 0};
    return found("moe_combine", model.expertsCombine(shape, step.tokens));
  }
  for (const char *family : {"add", "rms_norm", "embedding", "repeat", "swiglu",
                             "rotary_embedding", "latent_cache_write", "split",
                             "rope"})
    if (Name name(text); name.take(family))
      return rows(model, name, family, step);
  return std::nullopt;
}

} // namespace mla::cost
