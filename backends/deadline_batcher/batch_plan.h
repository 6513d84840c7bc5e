// When a batch that is being formed is closed. Knows nothing of Triton, allocates nothing after it was made, and answers
// the same as long as it is asked the same at the same time.
//
// Usage:
//     BatchPlan plan(limits, cost);
//     plan.begin();
//     while (plan.include(tickets, num_rows, now_us)) { /* the next request */ }
#pragma once

#include <cstddef>
#include <cstdint>
#include <limits>
#include <vector>

namespace hplm {

constexpr int64_t kNoDeadline = 0;
constexpr int64_t kTicketVersion = 2;

// A row of the tensor TICKET, as it lies in memory. The deadline is on the machine's monotonic clock.
struct Ticket {
  int64_t version;
  int64_t hplm_key;
  int64_t num_tokens;
  int64_t truncated;
  int64_t deadline_us;
  int64_t middle;
  int64_t read_us;

  bool has_deadline() const { return deadline_us != kNoDeadline; }
  bool is_late(int64_t now_us) const { return has_deadline() && deadline_us <= now_us; }
};
static_assert(sizeof(Ticket) == 7 * sizeof(int64_t), "a ticket is seven integers without gaps");

// Numbers of tokens are doubles: a ticket may hold any integer, and its square must not overflow.
struct BatchShape {
  size_t rows = 0;
  double tokens = 0;
  double squared_lengths = 0;
  size_t adapters = 0;
};

struct CostModel {
  double constant_us = 0;
  double per_row_us = 0;
  double per_token_us = 0;
  double per_squared_length_us = 0;
  double per_adapter_us = 0;

  double predict_us(const BatchShape& shape) const {
    return constant_us + per_row_us * static_cast<double>(shape.rows) + per_token_us * shape.tokens +
           per_squared_length_us * shape.squared_lengths + per_adapter_us * static_cast<double>(shape.adapters);
  }
};

struct Limits {
  size_t max_rows;
  size_t max_tokens;
  size_t max_adapters;
};

// The different hPLMs of a batch: a hash table at most half full, in which the last ones to come are the first to go.
class KeySet {
 public:
  explicit KeySet(size_t capacity) : places_(table_size(capacity)), taken_(capacity) {}

  size_t size() const { return size_; }

  void cut_to(size_t size) {
    while (size_ > size) places_[taken_[--size_]].is_taken = false;
  }

  // How many keys the set has grown by. Beyond the capacity keys are not held, and count each time.
  size_t added(int64_t key) {
    const size_t mask = places_.size() - 1;
    for (size_t number = (static_cast<uint64_t>(key) * kGoldenRatio >> 32) & mask;; number = (number + 1) & mask) {
      Place& place = places_[number];
      if (place.is_taken && place.key == key) return 0;
      if (place.is_taken) continue;
      if (size_ < taken_.size()) {
        place = {key, true};
        taken_[size_++] = number;
      }
      return 1;
    }
  }

 private:
  struct Place {
    int64_t key;
    bool is_taken;
  };

  static constexpr uint64_t kGoldenRatio = 0x9E3779B97F4A7C15;

  static size_t table_size(size_t capacity) {
    size_t size = 2;
    while (size < 2 * capacity) size *= 2;
    return size;
  }

  std::vector<Place> places_;
  std::vector<size_t> taken_;
  size_t size_ = 0;
};

class BatchPlan {
 public:
  BatchPlan(const Limits& limits, const CostModel& cost) : limits_(limits), cost_(cost), keys_(limits.max_rows) {}

  void begin() {
    shape_ = BatchShape();
    keys_.cut_to(0);
    earliest_us_ = kNever;
    is_empty_ = true;
  }

  const BatchShape& shape() const { return shape_; }

  // Whether a request joins the batch; if so, it has. The first one always does: whoever refuses it would be asked again
  // at once, for ever. So does one that adds nothing to the work because all its rows are late: it will be refused.
  bool include(const Ticket* tickets, size_t num_rows, int64_t now_us) {
    const size_t num_keys = keys_.size();
    const BatchShape grown = with(tickets, num_rows, now_us);
    const double end_us = static_cast<double>(now_us) + cost_.predict_us(grown);
    const bool adds_nothing = grown.rows == shape_.rows;
    if (!is_empty_ && !adds_nothing && (!fits(grown) || end_us > earliest_us_)) {
      keys_.cut_to(num_keys);
      return false;
    }
    is_empty_ = false;
    shape_ = grown;
    note_deadlines(tickets, num_rows, end_us);
    return true;
  }

 private:
  static constexpr double kNever = std::numeric_limits<double>::infinity();

  BatchShape with(const Ticket* tickets, size_t num_rows, int64_t now_us) {
    BatchShape grown = shape_;
    for (size_t row = 0; row < num_rows; ++row) {
      const Ticket& ticket = tickets[row];
      if (ticket.is_late(now_us)) continue;
      const double length = ticket.num_tokens > 0 ? static_cast<double>(ticket.num_tokens) : 0.0;
      grown.rows += 1;
      grown.tokens += length;
      grown.squared_lengths += length * length;
      grown.adapters += keys_.added(ticket.hplm_key);
    }
    return grown;
  }

  bool fits(const BatchShape& shape) const {
    return shape.rows <= limits_.max_rows && shape.tokens <= static_cast<double>(limits_.max_tokens) &&
           shape.adapters <= limits_.max_adapters;
  }

  // A deadline that the batch misses anyway closes it to nobody.
  void note_deadlines(const Ticket* tickets, size_t num_rows, double end_us) {
    for (size_t row = 0; row < num_rows; ++row) {
      const double deadline_us = static_cast<double>(tickets[row].deadline_us);
      if (tickets[row].has_deadline() && end_us <= deadline_us && deadline_us < earliest_us_) {
        earliest_us_ = deadline_us;
      }
    }
  }

  Limits limits_;
  CostModel cost_;
  KeySet keys_;
  BatchShape shape_;
  double earliest_us_ = kNever;
  bool is_empty_ = true;
};

}  // namespace hplm
