//===- PageAllocator.h - pages of the cache and who holds them --*- C++ -*-===//
//
// Part of mla. The cache is cut into pages of plan::pageTokens tokens. A page
// number names the same page in the cache of every layer, so one list of pages
// describes a sequence in all of them; where the tokens are spread over the ranks, a
// number stands for a page on every rank (plan::Plan::tokensOfPage). The memory
// itself belongs to the executor; here are only numbers.
//
// Threads: an allocator and the sequences of it belong to one thread at a time.
//
//===----------------------------------------------------------------------===//
#ifndef MLA_RUNTIME_CACHE_PAGEALLOCATOR_H
#define MLA_RUNTIME_CACHE_PAGEALLOCATOR_H

#include "mla/Plan/Plan.h"
#include "mla/Support/Status.h"
#include <cstdint>
#include <memory>
#include <span>
#include <vector>

namespace mla::runtime {

class PageAllocator {
public:
  /// `capacity` page numbers that stand for `pageTokens` tokens each.
  explicit PageAllocator(int64_t capacity,
                         int64_t pageTokens = plan::pageTokens);

  int64_t capacity() const { return total; }
  int64_t tokensOfPage() const { return pageTokens; }
  /// Page numbers that so many tokens of one sequence need.
  int64_t pagesFor(int64_t tokens) const {
    return (tokens + pageTokens - 1) / pageTokens;
  }
  int64_t available() const { return static_cast<int64_t>(free.size()); }

  /// Appends `count` pages to `pages`. Exhausted, with numbers and without
  /// taking any, if fewer are free.
  Status take(int64_t count, std::vector<int32_t> &pages);
  void release(std::span<const int32_t> pages);

private:
  const int64_t total, pageTokens;
  std::vector<int32_t> free; ///< Used from the back; low numbers first.
};

/// The tokens of one text in the cache. Its pages go back when it is destroyed.
/// It may outlive the engine that made it, but is of no use then.
class Sequence {
public:
  explicit Sequence(std::shared_ptr<PageAllocator> pages)
      : allocator(std::move(pages)) {}
  Sequence(Sequence &&other) noexcept;
  Sequence &operator=(Sequence &&other) noexcept;
  ~Sequence() { truncate(0); }

  /// Tokens that are in the cache.
  int64_t length() const { return tokens; }
  /// Page numbers in order; they hold at least length() tokens.
  std::span<const int32_t> pages() const { return held; }

  /// Makes it `count` tokens longer. Exhausted, and unchanged, if the cache has
  /// not enough free pages.
  Status extend(int64_t count);
  /// Forgets all tokens from `length` on; nothing if it is not longer.
  void truncate(int64_t length);

private:
  std::shared_ptr<PageAllocator> allocator;
  std::vector<int32_t> held;
  int64_t tokens = 0;
};

} // namespace mla::runtime

#endif // MLA_RUNTIME_CACHE_PAGEALLOCATOR_H
