//===- Calibration.cpp - the constants of the cost model ------------------===//
//
// Part of mla. Which there are, and reading them.
//
//===----------------------------------------------------------------------===//
#include "mla/CostModel/CostModel.h"
#include "mla/Support/Json.h"
#include <algorithm>

namespace mla::cost {

namespace {
/// share/calibration/kernels.json, put in here at build time.
constexpr struct {
  std::string_view name, text;
} shippedText[] = {
#include "Shipped.inc"
};

constexpr std::string_view seconds = "seconds", bytesACycle = "bytes a cycle",
                           cyclesEach = "cycles", ratio = "ratio";

// Sorted by name.
constexpr Constant all[] = {
    {"attention.bf16.cycles_16", cyclesEach, 700, 50, 20000},
    {"attention.bf16.cycles_32", cyclesEach, 1550, 50, 20000},
    {"attention.bf16.cycles_8", cyclesEach, 600, 50, 20000},
    {"attention.combine_latency", seconds, 1.8e-6, 1e-7, 1e-5},
    {"attention.combine_share", ratio, 1.3, 0.05, 8},
    {"attention.expand_latency", seconds, 4e-7, 0, 1e-5},
    {"attention.expand_split_latency", seconds, 1.2e-8, 0, 1e-6},
    {"attention.fp8_e4m3.cycles_16", cyclesEach, 1280, 50, 20000},
    {"attention.fp8_e4m3.cycles_32", cyclesEach, 2080, 50, 20000},
    {"attention.fp8_e4m3.cycles_8", cyclesEach, 900, 50, 20000},
    {"attention.head_latency", seconds, 1e-7, 0, 1e-6},
    {"attention.latency", seconds, 1.5e-6, 1e-7, 1e-5},
    {"attention.partial_share", ratio, 1.3, 0.05, 8},
    {"attention.ramp_bytes", "bytes", 6e4, 1e3, 1e7},
    {"attention.ramp_latency", seconds, 3e-6, 0, 2e-5},
    {"attention.several_latency", seconds, 5e-7, 0, 1e-5},
    {"attention.warp_cycles", cyclesEach, 145, 0, 5000},
    {"bench.start", seconds, 1.8e-6, 0, 1e-5},
    {"experts.choice_latency", seconds, 8e-7, 0, 1e-5},
    {"experts.combine_latency", seconds, 2e-6, 1e-7, 1e-5},
    {"experts.down_latency", seconds, 1.2e-6, 1e-7, 1e-5},
    {"experts.few_latency", seconds, 3e-6, 1e-7, 2e-5},
    {"experts.gate_latency", seconds, 2.2e-6, 1e-7, 1e-5},
    {"experts.group_latency", seconds, 3e-6, 1e-7, 1e-4},
    {"experts.group_pair_cycles", cyclesEach, 2, 0, 200},
    {"experts.many_latency", seconds, 3e-6, 1e-7, 1e-4},
    {"experts.many_mma_cycles", cyclesEach, 3.5, 0.5, 50},
    {"few.bf16.bytes_per_cycle", bytesACycle, 14, 1, 100},
    {"few.fp8_block.bytes_per_cycle", bytesACycle, 14, 1, 100},
    {"few.int4_g32.bytes_per_cycle", bytesACycle, 11, 1, 100},
    {"few.mma_cycles", cyclesEach, 4, 0.5, 50},
    {"few.nvfp4.bytes_per_cycle", bytesACycle, 11, 1, 100},
    {"heads.bytes_per_cycle", bytesACycle, 20, 1, 200},
    {"heads.latency", seconds, 1e-6, 1e-7, 1e-5},
    {"heads.many_latency", seconds, 3e-6, 1e-7, 1e-4},
    {"heads.many_mma_cycles", cyclesEach, 5, 0.5, 50},
    {"large.bf16.decode_cycles", "cycles a kilobyte", 10, 0, 1000},
    {"large.fp8_block.decode_cycles", "cycles a kilobyte", 20, 0, 1000},
    {"large.int4_g32.decode_cycles", "cycles a kilobyte", 40, 0, 1000},
    {"large.latency", seconds, 4e-6, 1e-7, 1e-4},
    {"large.mma_cycles", cyclesEach, 2.4, 0.5, 50},
    {"large.nvfp4.decode_cycles", "cycles a kilobyte", 40, 0, 1000},
    {"large.pack_latency", seconds, 2e-6, 1e-7, 1e-4},
    {"large.wave_latency", seconds, 8e-6, 0, 1e-4},
    {"overlap.power", "exponent", 6, 2, 20},
    {"prefill.bf16.cycles", cyclesEach, 2380, 100, 20000},
    {"prefill.fp8_e4m3.cycles", cyclesEach, 2600, 100, 20000},
    {"prefill.latency", seconds, 5e-6, 1e-7, 1e-4},
    {"route.cycles_per_block", cyclesEach, 1000, 0, 20000},
    {"route.cycles_per_expert", cyclesEach, 1, 0, 20},
    {"route.latency", seconds, 1.6e-6, 1e-7, 1e-5},
    {"rows.l2_share", ratio, 1.5, 0.05, 8},
    {"rows.latency", seconds, 0.85e-6, 1e-7, 1e-5},
    {"rows.read_share", ratio, 0.85, 0.05, 4},
    {"sm.read_bytes_per_cycle", bytesACycle, 25, 4, 128},
    {"step.gap_share", ratio, 0.8, 0, 10},
    {"stream.bf16.bytes_per_cycle", bytesACycle, 19, 1, 100},
    {"stream.column_latency", seconds, 1e-10, 0, 1e-8},
    {"stream.exact_latency", seconds, 8e-7, 0, 1e-5},
    {"stream.fp8_block.bytes_per_cycle", bytesACycle, 17, 1, 100},
    {"stream.int4_g32.bytes_per_cycle", bytesACycle, 14, 1, 100},
    {"stream.latency", seconds, 1.15e-6, 1e-7, 1e-5},
    {"stream.norm_latency", seconds, 3e-7, 0, 1e-5},
    {"stream.nvfp4.bytes_per_cycle", bytesACycle, 13, 1, 100},
    {"stream.refill_begin", "rings", 1.7, 0.5, 4},
    {"stream.refill_latency", seconds, 2e-6, 0, 2e-5},
    {"stream.refill_width", "rings", 0.9, 0.1, 4},
    {"tile.bf16.bytes_per_cycle", bytesACycle, 8, 1, 100},
    {"tile.column_cycles", cyclesEach, 1, 0, 100},
    {"tile.fp8_block.bytes_per_cycle", bytesACycle, 7.3, 1, 100},
    {"tile.int4_g32.bytes_per_cycle", bytesACycle, 6.3, 1, 100},
    {"tile.latency", seconds, 8e-7, 1e-7, 2e-5},
    {"tile.mma_cycles", cyclesEach, 4, 0.5, 50},
    {"tile.nvfp4.bytes_per_cycle", bytesACycle, 6.3, 1, 100},
    {"tile.partial_factor", ratio, 1.3, 1, 5},
    {"tile.x_bytes_per_cycle", bytesACycle, 19, 1, 200},
};
static_assert(std::is_sorted(std::begin(all), std::end(all),
                             [](const Constant &a, const Constant &b) {
                               return a.name < b.name;
                             }));
} // namespace

std::span<const Constant> constants() { return all; }

Result<Calibration> Calibration::parse(std::string_view text,
                                       std::string name) {
  MLA_ASSIGN_OR_RETURN(std::unique_ptr<JsonDocument> document,
                       JsonDocument::parseText(text, std::move(name)));
  Calibration result;
  document->root()["version"].integer(1, 1);
  JsonValue constantsAt = document->root()["constants"];
  for (const auto &[key, value] : constantsAt.members()) {
    auto found =
        std::find_if(std::begin(all), std::end(all),
                     [&](const Constant &c) { return c.name == key; });
    if (found == std::end(all)) {
      value.failWith("no such constant");
      continue;
    }
    double number = value.number();
    if (value.isNumber() && !(number >= found->low && number <= found->high))
      value.fail("a number from " + std::to_string(found->low) + " to " +
                 std::to_string(found->high));
    result.values[key] = number;
  }
  for (const Constant &c : all)
    if (constantsAt.isObject() && !constantsAt[c.name].present())
      constantsAt[c.name].fail("a number");
  MLA_RETURN_IF_ERROR(document->status());
  return result;
}

const Calibration &Calibration::shipped() {
  // A test reads the file, so that it is whole wherever this runs.
  static const Calibration calibration = [] {
    Result<Calibration> parsed =
        parse(shippedText[0].text, "share/calibration/kernels.json");
    return parsed.ok() ? *std::move(parsed) : Calibration();
  }();
  return calibration;
}

} // namespace mla::cost
