//===- CacheTest.cpp - pages of the cache and who holds them --------------===//
//
// Part of mla.
//
//===----------------------------------------------------------------------===//
#include "runtime/cache/PageAllocator.h"
#include <gtest/gtest.h>
#include <set>

using namespace mla::runtime;

namespace {

TEST(Cache, PagesAreDistinctAndComeBack) {
  auto pages = std::make_shared<PageAllocator>(5);
  {
    Sequence a(pages), b(pages);
    ASSERT_TRUE(a.extend(64).ok());
    ASSERT_TRUE(b.extend(65).ok());
    EXPECT_EQ(a.pages().size(), 1U);
    EXPECT_EQ(b.pages().size(), 2U);
    std::set<int32_t> used(a.pages().begin(), a.pages().end());
    used.insert(b.pages().begin(), b.pages().end());
    EXPECT_EQ(used.size(), 3U);
    EXPECT_GE(*used.begin(), 0);
    EXPECT_LT(*used.rbegin(), 5);
    EXPECT_EQ(pages->available(), 2);
    // The rest of a page is used before another is taken.
    ASSERT_TRUE(b.extend(63).ok());
    EXPECT_EQ(b.pages().size(), 2U);
  }
  EXPECT_EQ(pages->available(), 5);
}

/// Where a number stands for a page on each of 3 ranks.
TEST(Cache, NumbersOfSeveralPages) {
  auto pages = std::make_shared<PageAllocator>(2, 3 * 64);
  Sequence a(pages);
  ASSERT_TRUE(a.extend(192).ok());
  EXPECT_EQ(a.pages().size(), 1U);
  ASSERT_TRUE(a.extend(1).ok());
  EXPECT_EQ(a.pages().size(), 2U);
  mla::Status status = a.extend(192);
  EXPECT_EQ(status.code(), mla::StatusCode::Exhausted);
  EXPECT_NE(status.message().find("1 more pages of 192 tokens"),
            std::string::npos)
      << status.message();
  a.truncate(192);
  EXPECT_EQ(a.pages().size(), 1U);
  EXPECT_EQ(pages->available(), 1);
}

TEST(Cache, ExhaustedTakesNothing) {
  auto pages = std::make_shared<PageAllocator>(2);
  Sequence a(pages);
  ASSERT_TRUE(a.extend(10).ok());
  mla::Status status = a.extend(64 * 2);
  EXPECT_EQ(status.code(), mla::StatusCode::Exhausted);
  EXPECT_NE(status.message().find("2 more pages"), std::string::npos)
      << status.message();
  EXPECT_NE(status.message().find("1 of 2 are free"), std::string::npos);
  EXPECT_EQ(a.length(), 10);
  EXPECT_EQ(a.pages().size(), 1U);
  EXPECT_EQ(pages->available(), 1);
}

TEST(Cache, Truncate) {
  auto pages = std::make_shared<PageAllocator>(4);
  Sequence a(pages);
  ASSERT_TRUE(a.extend(200).ok());
  std::vector<int32_t> before(a.pages().begin(), a.pages().end());
  a.truncate(300);
  EXPECT_EQ(a.length(), 200);
  a.truncate(64);
  EXPECT_EQ(a.length(), 64);
  ASSERT_EQ(a.pages().size(), 1U);
  EXPECT_EQ(a.pages()[0], before[0]);
  EXPECT_EQ(pages->available(), 3);
}

TEST(Cache, MovesOwnership) {
  auto pages = std::make_shared<PageAllocator>(4);
  Sequence a(pages);
  ASSERT_TRUE(a.extend(100).ok());
  Sequence b(std::move(a));
  EXPECT_EQ(b.length(), 100);
  {
    Sequence c(pages);
    ASSERT_TRUE(c.extend(1).ok());
    c = std::move(b);
    EXPECT_EQ(c.length(), 100);
  }
  b = Sequence(pages);
  EXPECT_EQ(pages->available(), 4);
}

} // namespace
