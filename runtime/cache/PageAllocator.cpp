//===- PageAllocator.cpp - pages of the cache and who holds them ----------===//
//
// Part of mla.
//
//===----------------------------------------------------------------------===//
#include "runtime/cache/PageAllocator.h"
#include <utility>

namespace mla::runtime {

PageAllocator::PageAllocator(int64_t capacity, int64_t pageTokens)
    : total(capacity), pageTokens(pageTokens) {
  free.reserve(static_cast<size_t>(capacity));
  for (int64_t page = capacity; page-- > 0;)
    free.push_back(static_cast<int32_t>(page));
}

Status PageAllocator::take(int64_t count, std::vector<int32_t> &pages) {
  if (count > available())
    return exhausted(
        "the cache is full: " + std::to_string(count) + " more pages of " +
        std::to_string(pageTokens) + " tokens are needed, " +
        std::to_string(available()) + " of " + std::to_string(total) +
        " are free; a larger cache can be set with --cache-tokens");
  for (int64_t i = 0; i < count; ++i) {
    pages.push_back(free.back());
    free.pop_back();
  }
  return {};
}

void PageAllocator::release(std::span<const int32_t> pages) {
  for (size_t i = pages.size(); i-- > 0;)
    free.push_back(pages[i]);
}

Sequence::Sequence(Sequence &&other) noexcept
    : allocator(std::move(other.allocator)), held(std::move(other.held)),
      tokens(std::exchange(other.tokens, 0)) {}

Sequence &Sequence::operator=(Sequence &&other) noexcept {
  std::swap(allocator, other.allocator);
  std::swap(held, other.held);
  std::swap(tokens, other.tokens);
  return *this;
}

Status Sequence::extend(int64_t count) {
  int64_t needed = allocator->pagesFor(tokens + count) -
                   static_cast<int64_t>(held.size());
  if (needed > 0)
    MLA_RETURN_IF_ERROR(allocator->take(needed, held));
  tokens += count;
  return {};
}

void Sequence::truncate(int64_t length) {
  if (length >= tokens)
    return;
  auto keep = static_cast<size_t>(allocator->pagesFor(length));
  allocator->release(std::span(held).subspan(keep));
  held.resize(keep);
  tokens = length;
}

} // namespace mla::runtime
