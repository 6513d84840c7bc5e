// The rules by which a batch is closed.
#include <cstdio>
#include <cstdlib>
#include <new>
#include <random>
#include <set>
#include <string>
#include <vector>

#include "batch_plan.h"
#include "check.h"
#include "parameters.h"

static size_t num_allocations = 0;

void* operator new(size_t size) {
  ++num_allocations;
  if (void* memory = std::malloc(size)) return memory;
  throw std::bad_alloc();
}
void operator delete(void* memory) noexcept { std::free(memory); }
void operator delete(void* memory, size_t) noexcept { std::free(memory); }

namespace {

using hplm::BatchPlan;
using hplm::CostModel;
using hplm::Limits;
using hplm::Parameters;
using hplm::Ticket;

const Limits kWide{1000, 1000000, 1000};
const CostModel kFree{};
constexpr int64_t kNow = 5000000;

Ticket row(int64_t key, int64_t tokens, int64_t deadline_us = 0) { return {hplm::kTicketVersion, key, tokens, 0, deadline_us, tokens, 1, 0, 0, 0, 0, 0, 0, 0}; }

bool include(BatchPlan& plan, const std::vector<Ticket>& request, int64_t now_us = kNow) {
  return plan.include(request.data(), request.size(), now_us);
}

// How many requests of one row each a batch takes from the front of a queue.
size_t taken(BatchPlan& plan, const std::vector<Ticket>& queue, int64_t now_us = kNow) {
  plan.begin();
  size_t count = 0;
  while (count < queue.size() && include(plan, {queue[count]}, now_us)) ++count;
  return count;
}

void test_tokens_close_a_batch() {
  BatchPlan plan({1000, 40, 1000}, kFree);
  CHECK(taken(plan, {row(1, 16), row(1, 16), row(1, 8), row(1, 1)}) == 3);
  CHECK(taken(plan, {row(1, 16), row(1, 25), row(1, 1)}) == 1);
}

void test_rows_close_a_batch() {
  BatchPlan plan({3, 1000000, 1000}, kFree);
  CHECK(taken(plan, std::vector<Ticket>(9, row(1, 4))) == 3);
  plan.begin();
  CHECK(include(plan, {row(1, 4), row(1, 4)}));
  CHECK(!include(plan, {row(1, 4), row(1, 4)}));
}

void test_hplms_close_a_batch() {
  BatchPlan plan({1000, 1000000, 2}, kFree);
  CHECK(taken(plan, {row(7, 4), row(8, 4), row(7, 4), row(9, 4)}) == 3);
  plan.begin();
  CHECK(include(plan, {row(7, 4)}));
  CHECK(!include(plan, {row(8, 4), row(9, 4)}));
  CHECK(include(plan, {row(8, 4)}));  // who is refused leaves nothing behind
}

void test_the_first_request_always_joins() {
  BatchPlan plan({2, 10, 1}, {100, 100, 100, 100, 100});
  plan.begin();
  CHECK(include(plan, {row(1, 900, kNow + 1), row(2, 900, kNow + 1), row(3, 900)}));
  CHECK(!include(plan, {row(1, 1)}));
}

void test_the_earliest_deadline_closes_a_batch() {
  BatchPlan plan(kWide, {100, 0, 10, 0, 0});
  // One row of ten tokens takes 200 us, two take 300, three 400.
  CHECK(taken(plan, {row(1, 10, kNow + 350), row(1, 10), row(1, 10)}) == 2);
  CHECK(taken(plan, {row(1, 10), row(1, 10, kNow + 300), row(1, 10)}) == 2);
  CHECK(taken(plan, {row(1, 10, kNow + 9999), row(1, 10, kNow + 400), row(1, 10), row(1, 10)}) == 3);
  CHECK(taken(plan, {row(1, 10, kNow + 350), row(1, 10), row(1, 10)}, kNow + 100) == 1);
}

void test_each_coefficient_counts() {
  const std::vector<Ticket> queue = {row(1, 10, kNow + 1000), row(2, 20), row(2, 30)};
  BatchPlan constant(kWide, {1000, 0, 0, 0, 0}), rows(kWide, {0, 500, 0, 0, 0}), tokens(kWide, {0, 0, 1000.0 / 30, 0, 0});
  BatchPlan squares(kWide, {0, 0, 0, 2, 0}), adapters(kWide, {0, 0, 0, 0, 400});
  CHECK(taken(constant, queue) == 3);
  CHECK(taken(rows, queue) == 2);
  CHECK(taken(tokens, queue) == 2);
  CHECK(taken(squares, queue) == 2);
  CHECK(taken(adapters, queue) == 3);
}

void test_a_deadline_that_is_missed_anyway_closes_a_batch_to_nobody() {
  BatchPlan plan(kWide, {100, 0, 10, 0, 0});
  CHECK(taken(plan, {row(1, 10, kNow + 150), row(1, 10), row(1, 10)}) == 3);
  CHECK(taken(plan, {row(1, 10), row(1, 10, kNow + 250), row(1, 10)}) == 3);
}

void test_late_rows_take_no_room() {
  BatchPlan plan({2, 20, 1}, kFree);
  CHECK(taken(plan, {row(1, 10), row(2, 10, kNow), row(3, 99, kNow - 1), row(1, 10), row(1, 1)}) == 4);
}

void test_tickets_that_make_no_sense_do_no_harm() {
  constexpr int64_t kMost = INT64_MAX, kLeast = INT64_MIN;
  BatchPlan plan({4, 100, 4}, {1, 1, 1, 1, 1});
  CHECK(taken(plan, {row(1, kMost, kMost), row(1, 1)}) == 1);
  CHECK(taken(plan, {row(1, 5), row(1, kMost), row(1, 5)}) == 1);
  CHECK(taken(plan, {row(1, kLeast, kLeast), row(kLeast, -5), row(kMost, 0)}) == 3);
  plan.begin();
  CHECK(plan.include(nullptr, 0, kNow));
  CHECK(plan.include(nullptr, 0, kNow));
  CHECK(include(plan, {row(1, 100)}));
}

// The same rules once more, slowly: from the whole batch each time instead of from what was noted.
size_t taken_slowly(const Limits& limits, const CostModel& cost, const std::vector<Ticket>& queue, int64_t now_us) {
  const auto shape_of = [&](size_t count) {
    hplm::BatchShape shape;
    std::set<int64_t> keys;
    for (size_t place = 0; place < count; ++place) {
      if (queue[place].is_late(now_us)) continue;
      const double length = static_cast<double>(queue[place].num_tokens);
      ++shape.rows;
      shape.tokens += length;
      shape.squared_lengths += length * length;
      keys.insert(queue[place].hplm_key);
    }
    shape.adapters = keys.size();
    return shape;
  };
  const auto end_us = [&](size_t count) { return static_cast<double>(now_us) + cost.predict_us(shape_of(count)); };
  for (size_t count = 1; count < queue.size(); ++count) {
    if (queue[count].is_late(now_us)) continue;
    const hplm::BatchShape grown = shape_of(count + 1);
    if (grown.rows > limits.max_rows || grown.tokens > static_cast<double>(limits.max_tokens) ||
        grown.adapters > limits.max_adapters) {
      return count;
    }
    for (size_t place = 0; place < count; ++place) {
      const double deadline_us = static_cast<double>(queue[place].deadline_us);
      const bool could_be_met = queue[place].has_deadline() && end_us(place + 1) <= deadline_us;
      if (could_be_met && end_us(count + 1) > deadline_us) return count;
    }
  }
  return queue.size();
}

void test_random_queues_against_the_slow_rules(unsigned seed) {
  std::mt19937 random(seed);
  const auto upto = [&](int64_t most) { return static_cast<int64_t>(random() % static_cast<unsigned>(most + 1)); };
  for (int round = 0; round < 20000; ++round) {
    const Limits limits{static_cast<size_t>(1 + upto(12)), static_cast<size_t>(30 + upto(200)),
                        static_cast<size_t>(1 + upto(5))};
    const CostModel cost{double(upto(300)), double(upto(30)), double(upto(20)), 0.25 * double(upto(2)), double(upto(50))};
    std::vector<Ticket> queue;
    for (int64_t left = 1 + upto(20); left > 0; --left) {
      const int64_t deadline_us = upto(2) == 0 ? 0 : kNow - 100 + upto(4000);
      queue.push_back(row(upto(7), 1 + upto(29), deadline_us));
    }
    BatchPlan plan(limits, cost);
    const size_t expected = taken_slowly(limits, cost, queue, kNow), found = taken(plan, queue);
    const bool same_again = taken(plan, queue) == found;
    if (found != expected || !same_again) {
      std::printf("%s: seed %u, round %d: %zu, not %zu\n", __func__, seed, round, found, expected);
      ++num_failures;
      return;
    }
  }
}

void test_nothing_is_allocated_while_a_batch_is_formed() {
  BatchPlan plan({64, 4096, 32}, {100, 10, 1, 0.1, 5});
  std::vector<Ticket> queue;
  for (int64_t number = 0; number < 200; ++number) queue.push_back(row(number % 40, 20, kNow + 1000000));
  const size_t before = num_allocations;
  plan.begin();
  for (const Ticket& ticket : queue) plan.include(&ticket, 1, kNow);
  CHECK(num_allocations == before);
}

void test_parameters_are_found_in_a_configuration() {
  const Parameters parameters(
      R"({"name":"max_rows","parameters":{"home":{"string_value":"a \"max_rows\":{\"string_value\":\"7\"}"},)"
      R"("max_rows" : { "string_value" : "64" },"cost":{"string_value":"1.5e-05"},"word":{"string_value":"x"},)"
      R"("less":{"string_value":"-3.5"},"none":{"string_value":""},"endless":{"string_value":"inf"}}})");
  double value = 0;
  std::string text;
  CHECK(parameters.number("max_rows", &value) && value == 64);
  CHECK(parameters.number("cost", &value) && value == 1.5e-05);
  CHECK(parameters.number("less", &value) && value == -3.5);
  CHECK(parameters.find("word", &text) && text == "x");
  CHECK(!parameters.number("word", &value));
  CHECK(!parameters.number("none", &value));
  CHECK(!parameters.number("endless", &value));
  CHECK(!parameters.number("absent", &value));
  CHECK(!Parameters("\"max_rows\"").number("max_rows", &value));
  CHECK(!Parameters("").number("max_rows", &value));
  CHECK(!Parameters("\"max_rows\":{\"string_value\":\"64").number("max_rows", &value));
  const Parameters own(R"({"delay":10,"name":"wait","wait" : 0, "long":0.5,"most":{"string_value":"0"},"last":0})");
  CHECK(own.has_number("wait", 0) && own.has_number("last", 0) && own.has_number("delay", 10));
  CHECK(!own.has_number("delay", 1) && !own.has_number("long", 0) && !own.has_number("most", 0));
  CHECK(!own.has_number("wait", 1) && !own.has_number("absent", 0) && !Parameters("\"wait\":0").has_number("wait", 0));
}

}  // namespace

int main(int, char** arguments) {
  test_tokens_close_a_batch();
  test_rows_close_a_batch();
  test_hplms_close_a_batch();
  test_the_first_request_always_joins();
  test_the_earliest_deadline_closes_a_batch();
  test_each_coefficient_counts();
  test_a_deadline_that_is_missed_anyway_closes_a_batch_to_nobody();
  test_late_rows_take_no_room();
  test_tickets_that_make_no_sense_do_no_harm();
  test_random_queues_against_the_slow_rules(static_cast<unsigned>(std::strtoul(arguments[1], nullptr, 10)));
  test_nothing_is_allocated_while_a_batch_is_formed();
  test_parameters_are_found_in_a_configuration();
  return num_failures == 0 ? 0 : 1;
}
