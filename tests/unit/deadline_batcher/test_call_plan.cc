// Which strings are complete, and who shares a batch.
#include <algorithm>
#include <cstdint>
#include <cstdio>
#include <cstdlib>
#include <random>
#include <string>
#include <vector>

#include "check.h"
#include "call_plan.h"

namespace {

using hplm::StringCheck;
using hplm::CallPlan;
using Buffers = std::vector<std::string>;

std::string length(uint32_t value) {
  return {static_cast<char>(value), static_cast<char>(value >> 8), static_cast<char>(value >> 16),
          static_cast<char>(value >> 24)};
}

std::string text(const std::string& value) { return length(static_cast<uint32_t>(value.size())) + value; }

bool is_complete(const Buffers& buffers, uint64_t num_strings) {
  StringCheck check;
  for (const std::string& each : buffers) {
    std::vector<char> exact(each.begin(), each.end());  // so that a sanitizer sees what is read behind it
    check.read(exact.data(), exact.size());
  }
  return check.is_complete(num_strings);
}

// Cuts the buffers, and says whether that made them complete.
bool is_complete_once_cut(Buffers* buffers, uint64_t num_strings) {
  std::vector<std::vector<char>> exact;  // so that a sanitizer sees what is written behind them
  for (const std::string& each : *buffers) exact.emplace_back(each.begin(), each.end());
  StringCheck check;
  for (std::vector<char>& each : exact) check.read(each.data(), each.size());
  check.cut(num_strings);
  const bool is_complete_now = check.is_complete(num_strings);
  for (size_t index = 0; index < exact.size(); ++index) (*buffers)[index].assign(exact[index].begin(), exact[index].end());
  CHECK(is_complete_now == is_complete(*buffers, num_strings));
  return is_complete_now;
}

void test_strings() {
  CHECK(is_complete({text("cat")}, 1));
  CHECK(is_complete({text("")}, 1));
  CHECK(is_complete({text("") + text("cat") + text("")}, 3));
  CHECK(is_complete({length(3) + "c", "", "at" + text("dog"), text("")}, 3));
  CHECK(is_complete({length(3), "cat"}, 1));
  CHECK(!is_complete({length(4) + "cat"}, 1));
  CHECK(!is_complete({length(2) + "cat"}, 1));
  CHECK(!is_complete({length(UINT32_MAX) + "cat"}, 1));
  CHECK(!is_complete({length(1) + "c", length(1)}, 2));
  CHECK(!is_complete({text("cat") + "abc"}, 1));
  CHECK(!is_complete({"ab"}, 1));
  CHECK(!is_complete({text("cat").substr(0, 2), text("cat").substr(2)}, 1));  // nor does Triton's core take this
  CHECK(!is_complete({text("cat")}, 2));
  CHECK(!is_complete({text("cat") + text("dog")}, 1));
  CHECK(!is_complete({}, 1));
  CHECK(is_complete({}, 0));
}

void test_a_short_string_is_cut() {
  const struct {
    Buffers sent, cut;
    uint64_t num_strings;
  } cases[] = {
      {{length(4) + "cat"}, {length(3) + "\xff""at"}, 1},
      {{length(UINT32_MAX) + "cat"}, {length(3) + "\xff""at"}, 1},
      {{text("dog") + length(9) + "cat"}, {text("dog") + length(3) + "\xff""at"}, 2},
      {{length(4), "", "c", "at"}, {length(3), "", "\xff", "at"}, 1},
      {{text("c"), length(1)}, {text("c"), length(0)}, 2},
      {{length(3) + "cat"}, {length(3) + "cat"}, 1},
      {{text("")}, {text("")}, 1},
  };
  for (const auto& each : cases) {
    Buffers buffers = each.sent;
    CHECK(is_complete_once_cut(&buffers, each.num_strings));
    CHECK(buffers == each.cut);
  }
  for (const Buffers& hopeless : std::vector<Buffers>{{"ab"}, {text("cat") + "abc"}, {length(2) + "cat"}, {}}) {
    Buffers buffers = hopeless;
    CHECK(!is_complete_once_cut(&buffers, 1));
    CHECK(buffers == hopeless);
  }
  Buffers too_few{length(4) + "cat"};
  CHECK(!is_complete_once_cut(&too_few, 2));
  CHECK(too_few == Buffers{length(4) + "cat"});
}

// The same once more, slowly: byte by byte, in one buffer, with the positions where a length must not be cut.
bool is_complete_slowly(const Buffers& buffers, uint64_t num_strings) {
  std::string all;
  std::vector<size_t> cuts;
  for (const std::string& each : buffers) {
    all += each;
    cuts.push_back(all.size());
  }
  uint64_t found = 0;
  for (size_t at = 0; at < all.size(); ++found) {
    const size_t first = at;
    uint64_t bytes = 0;
    for (int shift = 0; shift < 32; shift += 8, ++at) {
      if (at == all.size()) return false;
      bytes |= static_cast<uint64_t>(static_cast<unsigned char>(all[at])) << shift;
    }
    const auto is_in_length = [&](size_t cut) { return cut > first && cut < first + 4; };
    if (std::any_of(cuts.begin(), cuts.end(), is_in_length)) return false;
    for (; bytes > 0; --bytes, ++at) {
      if (at == all.size()) return false;
    }
  }
  return found == num_strings;
}

void test_random_tensors_against_the_slow_rules(unsigned seed) {
  std::mt19937 random(seed);
  const auto upto = [&](size_t most) { return static_cast<size_t>(random() % (most + 1)); };
  size_t num_complete = 0;
  constexpr int kRounds = 50000;
  for (int round = 0; round < kRounds; ++round) {
    std::string all;
    uint64_t num_strings = upto(4);
    for (uint64_t left = num_strings; left > 0; --left) all += text(std::string(upto(6), static_cast<char>(upto(3))));
    if (upto(2) == 0 && !all.empty()) all[upto(all.size() - 1)] = static_cast<char>(upto(2) == 0 ? upto(255) : upto(8));
    if (upto(4) == 0) all.resize(upto(all.size() + 3));
    if (upto(9) == 0) num_strings = upto(5);
    Buffers buffers;
    while (!all.empty()) {
      const size_t size = upto(2) == 0 ? upto(all.size()) : all.size();
      buffers.push_back(all.substr(0, size));
      all.erase(0, size);
    }
    const bool expected = is_complete_slowly(buffers, num_strings);
    num_complete += expected;
    Buffers cut = buffers;
    const bool is_whole = is_complete_once_cut(&cut, num_strings);
    if (is_complete(buffers, num_strings) != expected || (expected && (!is_whole || cut != buffers))) {
      std::printf("%s: seed %u, round %d: not %d\n", __func__, seed, round, expected);
      ++num_failures;
      return;
    }
  }
  CHECK(num_complete > kRounds / 10 && num_complete < kRounds * 9 / 10);
}

constexpr size_t kMostBytes = 100;

void test_a_damaged_request_is_alone() {
  int first = 0, second = 0;
  CallPlan plan(kMostBytes);
  plan.begin(&first);
  CHECK(plan.include(true, 1) && plan.include(true, 1) && !plan.include(false, 1));
  plan.begin(&second);
  CHECK(plan.include(false, 1) && !plan.include(true, 1) && !plan.include(false, 1));
  plan.begin(&first);
  CHECK(plan.include(true, 1));
}

void test_a_batch_has_so_many_bytes_at_most() {
  int first = 0, second = 0;
  CallPlan plan(kMostBytes);
  plan.begin(&first);
  CHECK(plan.include(true, 60) && plan.include(true, 40) && !plan.include(true, 1) && plan.include(true, 0));
  plan.begin(&second);
  CHECK(plan.include(true, 101) && !plan.include(true, 0));
  plan.begin(&first);
  CHECK(plan.include(true, 1) && !plan.include(true, SIZE_MAX) && !plan.include(true, 100) && plan.include(true, 99));
}

void test_bytes_are_counted_whatever_they_are() {
  StringCheck check;
  std::string no_length = "abc", more = "abcdefgh";
  check.read(no_length.data(), no_length.size());
  check.read(more.data(), more.size());
  CHECK(check.size_bytes() == 11);
}

void test_a_batch_that_grows_is_what_it_was() {
  int first = 0, second = 0;
  CallPlan plan(kMostBytes);
  plan.begin(&first);
  plan.begin(&first);  // Triton begins twice before it asks
  CHECK(plan.include(true, 60));
  plan.begin(&first);
  CHECK(!plan.include(false, 1));
  plan.begin(&first);
  CHECK(plan.include(true, 30) && !plan.include(true, 11));
  plan.begin(&second);
  CHECK(plan.include(false, 1));
  plan.begin(&second);
  CHECK(!plan.include(true, 1));
}

struct Waiting {
  bool is_complete;
  size_t size_bytes;
};

bool may_join(const std::vector<Waiting>& batch, const Waiting& next) {
  size_t size_bytes = next.size_bytes;
  for (const Waiting& each : batch) {
    if (!each.is_complete) return false;
    size_bytes += each.size_bytes;
  }
  return batch.empty() || (next.is_complete && size_bytes <= kMostBytes);
}

// As Triton does it: a batch takes what it may of what waits, waits for an instance, and grows meanwhile.
void test_random_queues_against_the_slow_rules(unsigned seed) {
  std::mt19937 random(seed);
  const auto is = [&](unsigned one_in) { return random() % one_in == 0; };
  CallPlan plan(kMostBytes);
  int addresses[3] = {};
  size_t at = 0;
  for (int round = 0; round < 20000; ++round) {
    at = (at + 1 + random() % 2) % 3;  // any but the last one
    std::vector<Waiting> batch;
    bool is_waiting = !is(4);  // or the first request comes later
    plan.begin(addresses + at);
    for (bool grows = true; grows; grows = !is(3)) {
      plan.begin(addresses + at);
      for (bool is_asked = is_waiting; is_asked; is_asked = !is(5)) {
        const Waiting next{!is(3), random() % (is(10) ? 2 * kMostBytes : kMostBytes / 3)};
        const bool expected = may_join(batch, next);
        if (plan.include(next.is_complete, next.size_bytes) != expected) {
          std::printf("%s: seed %u, round %d: not %d\n", __func__, seed, round, expected);
          ++num_failures;
          return;
        }
        if (!expected) break;
        batch.push_back(next);
      }
      is_waiting = true;
    }
  }
}

}  // namespace

int main(int, char** arguments) {
  const auto seed = static_cast<unsigned>(std::strtoul(arguments[1], nullptr, 10));
  test_strings();
  test_a_short_string_is_cut();
  test_random_tensors_against_the_slow_rules(seed);
  test_a_damaged_request_is_alone();
  test_a_batch_has_so_many_bytes_at_most();
  test_bytes_are_counted_whatever_they_are();
  test_a_batch_that_grows_is_what_it_was();
  test_random_queues_against_the_slow_rules(seed);
  return num_failures == 0 ? 0 : 1;
}
