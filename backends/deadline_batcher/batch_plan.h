// Decides when a batch that is being formed is closed. A plan knows nothing of Triton and allocates only when it is
// made. The same calls at the same times give the same answers.
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
constexpr int64_t kTicketVersion = 7;

// A row of the tensor TICKET, as it lies in memory. The deadline is on the machine's monotonic clock.
struct Ticket {
  int64_t version;
  int64_t hplm_key;
  int64_t num_tokens;
  int64_t truncated;
  int64_t deadline_us;
  int64_t middle;
  int64_t exact;
  int64_t computing_us;
  int64_t level;
  int64_t canary;
  int64_t signed_us;
  int64_t serial;
  int64_t seal_low;
  int64_t seal_high;

  bool has_deadline() const { return deadline_us != kNoDeadline; }
  bool is_late(int64_t now_us) const { return has_deadline() && deadline_us <= now_us; }
};
static_assert(sizeof(Ticket) == 14 * sizeof(int64_t), "a ticket is fourteen integers without gaps");

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

// The different hPLMs of a batch: a hash table at most half full. Keys are removed in the reverse order of insertion.
class KeySet {
 public:
  explicit KeySet(size_t capacity) : entries_(table_size(capacity)), taken_(capacity) {}

  size_t size() const { return size_; }

  void cut_to(size_t size) {
    while (size_ > size) entries_[taken_[--size_]].is_taken = false;
  }

  // Adds a key and returns by how many keys the set has grown. Beyond the capacity a key is not stored and counts again.
  size_t added(int64_t key) {
    const size_t mask = entries_.size() - 1;
    for (size_t number = (static_cast<uint64_t>(key) * kGoldenRatio >> 32) & mask;; number = (number + 1) & mask) {
      Entry& entry = entries_[number];
      if (entry.is_taken && entry.key == key) return 0;
      if (entry.is_taken) continue;
      if (size_ < taken_.size()) {
        entry = {key, true};
        taken_[size_++] = number;
      }
      return 1;
    }
  }

 private:
  struct Entry {
    int64_t key;
    bool is_taken;
  };

  static constexpr uint64_t kGoldenRatio = 0x9E3779B97F4A7C15;

  static size_t table_size(size_t capacity) {
    size_t size = 2;
    while (size < 2 * capacity) size *= 2;
    return size;
  }

  std::vector<Entry> entries_;
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

  // Adds a request to the batch if it fits, and returns whether it did. The first request always joins, because Triton
  // would ask about it again at once, for ever. A request whose rows are all late joins too: it adds no work, and the
  // model rejects it.
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

  // A deadline that the batch misses anyway does not limit it.
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
