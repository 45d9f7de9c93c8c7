//===- Experts.cpp - experts and their router -----------------------------===//
//
// Part of mla. How many experts there are and how a token finds its own. The
// architecture fixes the scoring; a file may only agree.
//
//===----------------------------------------------------------------------===//
#include "Reader.h"

namespace mla::config {

/// n_routed_experts under the three names that transformers accepts.
static int64_t readExpertCount(ConfigReader &reader) {
  JsonValue main = reader["n_routed_experts"];
  JsonValue chosen = main;
  for (std::string_view key : {"num_experts", "num_local_experts"}) {
    JsonValue other = reader[key];
    if (!other.present())
      continue;
    if (!chosen.present())
      chosen = other;
    else if (chosen.isInteger() && other.isInteger() &&
             chosen.dump() != other.dump())
      other.failWith("contradicts " + chosen.pointer() + ": " +
                     other.describe() + " and " + chosen.describe());
  }
  return chosen.integer(1, maxExperts);
}

static void readRouter(ConfigReader &reader, const ArchitectureInfo &info,
                       MoeConfig &moe) {
  moe.scoring = info.scoring;
  if (JsonValue scoring = reader["scoring_func"];
      scoring.present() && scoring.string() != scoringName(info.scoring))
    reader.refuse(scoring, "unsupported scoring_func for this architecture (" +
                               scoring.describe() + ", supported: " +
                               std::string(scoringName(info.scoring)) + ")");
  moe.method = info.method;
  bool v2 = info.architecture == Architecture::DeepseekV2;
  if (JsonValue method = reader["topk_method"]; method.present()) {
    std::string name = method.string();
    if (v2 && name == "group_limited_greedy")
      moe.method = TopkMethod::GroupLimitedGreedy;
    else if (name != topkMethodName(info.method))
      reader.refuse(method, "unsupported topk_method for this architecture (" +
                                method.describe() + ", supported: " +
                                std::string(topkMethodName(info.method)) +
                                (v2 ? ", group_limited_greedy)" : ")"));
  }
  // Plain top-k knows no groups, and may say so with null.
  if (moe.method != TopkMethod::Greedy) {
    moe.groups = reader.dim("n_group", maxExperts);
    moe.topkGroups = reader.dim("topk_group", maxExperts);
  }
  moe.normalizeTopk = reader["norm_topk_prob"].boolean();
  // DeepSeek's code and transformers disagree about the scale then.
  if (v2 && moe.normalizeTopk)
    reader.refuse(reader["norm_topk_prob"],
                  "unsupported norm_topk_prob for this architecture (true, "
                  "supported: false)");
  moe.routedScale =
      reader.number(reader["routed_scaling_factor"], 1e-6, 1e6, 1.0);
}

MoeConfig readExperts(ConfigReader &reader, const ArchitectureInfo &info) {
  MoeConfig moe;
  moe.experts = readExpertCount(reader);
  moe.topk = reader.dim("num_experts_per_tok", maxExperts);
  JsonValue shared = reader["n_shared_experts"];
  if (shared.absent())
    shared.fail("an integer or null");
  else if (shared.present())
    moe.sharedExperts = shared.integer(0, maxExperts);
  moe.intermediateSize = reader.dim("moe_intermediate_size");
  readRouter(reader, info, moe);
  return moe;
}

} // namespace mla::config
