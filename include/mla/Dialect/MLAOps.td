//===- MLAOps.td - all op families ----------------------------*- tablegen -*-===//
//
// Part of mla.
//
//===----------------------------------------------------------------------===//
include "mla/Dialect/LinearOps.td"
include "mla/Dialect/CacheOps.td"
include "mla/Dialect/AttentionOps.td"
include "mla/Dialect/MoEOps.td"
include "mla/Dialect/CollectiveOps.td"
include "mla/Dialect/LaunchOps.td"
