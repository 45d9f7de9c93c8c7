//===- Backend.h - what the conformance suite runs over ---------*- C++ -*-===//
//
// Part of mla. A backend runs a function on N ranks. Whatever moves values
// between ranks, on the host or between GPUs, is added to backends() and must
// pass the same tests.
//
//===----------------------------------------------------------------------===//
#ifndef MLA_UNITTESTS_RUNTIME_COLLECTIVES_BACKEND_H
#define MLA_UNITTESTS_RUNTIME_COLLECTIVES_BACKEND_H

#include "runtime/collectives/Collectives.h"
#include <functional>
#include <memory>
#include <string>
#include <vector>

namespace mla::testing {

/// What a rank can do, with arrays in the host's memory: a backend of GPUs
/// copies.
class Member {
public:
  virtual ~Member() = default;
  virtual int rank() const = 0;
  virtual int size() const = 0;

  virtual Status allReduce(const float *x, float *y, int64_t count,
                           const std::string &what) = 0;
  virtual Status allGather(const float *x, float *y, int64_t rows,
                           int64_t columns, const std::string &what) = 0;
  virtual Status reduceScatter(const float *x, float *y, int64_t rows,
                               int64_t columns, const std::string &what) = 0;
  virtual Status allToAll(const float *x, float *y, int64_t rows,
                          int64_t columns, const std::string &what) = 0;
  virtual Status barrier(const std::string &what) = 0;

  virtual void setTimeout(std::chrono::milliseconds timeout) = 0;
  virtual void abort(const Status &why) = 0;
  /// Where one-shot ends, if the backend has such a place.
  virtual void setOneShotBytes(int64_t bytes) {}

  /// Those on the host, which move bytes too; else null.
  virtual collectives::Collectives *onHost() { return nullptr; }
};

/// Runs on each rank, maybe in a process of its own: what it finds is what it
/// returns, and no expectation of GoogleTest.
using Body = std::function<Status(Member &)>;

struct Outcome {
  Status status;
  double seconds = 0; ///< Of the body.
  bool died = false;  ///< Without an outcome.
};

/// A function that runs on N ranks.
class Ongoing {
public:
  virtual ~Ongoing() = default;
  /// Blocks. One outcome a rank.
  virtual std::vector<Outcome> wait() = 0;
};

/// What a backend may lack. Tests that need it are skipped, or expect less.
enum class Feature {
  OrderedSums, ///< f32 in the order of ranks; else within a tolerance
  Moves,       ///< reduceScatter(), allToAll()
  Bytes,       ///< onHost()
  OneRank,
  SeveralGroups,    ///< at the same time in one process
  DifferencesFound, ///< of ranks that make different calls
  Leaving,          ///< a rank may end while others go on
  MissingNamed,     ///< who does not come; else only that somebody does not
  AllMissingNamed,  ///< else one of them
  CallsNamed        ///< in errors of ranks that ended; else only the rank
};

class Backend {
public:
  virtual ~Backend() = default;
  virtual std::string name() const = 0;
  virtual bool has(Feature feature) const { return true; }
  virtual int mostRanks() const { return 1024; }
  /// Why it cannot be used here, or "".
  virtual std::string unusable() const { return ""; }
  /// Until a rank learns that another has ended.
  virtual double secondsToNotice() const { return 5; }
  /// Whether a rank can be killed.
  virtual bool hasProcesses() const { return false; }
  /// All-reduces of a few kilobytes that the suite may run in a row.
  virtual int replays() const = 0;
  virtual std::unique_ptr<Ongoing> start(int ranks, const Body &body) = 0;
};

/// Those that the program is for.
const std::vector<Backend *> &backends();

} // namespace mla::testing

#endif // MLA_UNITTESTS_RUNTIME_COLLECTIVES_BACKEND_H
