// Decides which requests share a call of a model that chooses its batches itself. Two kinds of request would fail all
// others of their call:
// - One with a damaged string, which ends before its length says so. Triton's core does not look at the end of a
//   tensor's last string; the Python backend does, and fails the call. In rare cases it never answers a request of such
//   a call: it tells answered requests by their addresses, which are used again. So the string is cut to what is there,
//   and the model says what is wrong. What cannot be cut is in a batch of its own.
// - A large one. The Python backend copies a batch into shared memory, and fails all of it where there is too little. So
//   a batch ends before it has more bytes than a limit; a request that is larger is in a batch of its own.
// A plan knows nothing of Triton and allocates nothing. The same calls give the same answers.
//
// Usage:
//     CallPlan plan(most_bytes);
//     plan.begin(address);
//     StringCheck check;
//     check.read(buffer, size);  // each buffer of a tensor
//     check.cut(num_strings);
//     plan.include(check.is_complete(num_strings), check.size_bytes());
#pragma once

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <cstring>

namespace hplm {

// Reads a tensor of strings, each behind its length in four bytes, in the buffers in which it lies. Like Triton's core
// it takes no length that lies in two of them.
class StringCheck {
 public:
  // The buffers must stay until the last string is cut.
  void read(void* buffer, size_t size) {
    char* at = static_cast<char*>(buffer);
    size_bytes_ += size;
    while (size > 0 && is_readable_) {
      if (left_ == 0) {
        uint32_t length = 0;
        is_readable_ = size >= sizeof(length);
        if (!is_readable_) return;
        std::memcpy(&length, at, sizeof(length));
        length_at_ = at;
        first_at_ = nullptr;
        at += sizeof(length);
        size -= sizeof(length);
        left_ = length;
        ++num_strings_;
      }
      const size_t taken = std::min(left_, size);
      if (taken > 0 && first_at_ == nullptr) first_at_ = at;
      at += taken;
      size -= taken;
      left_ -= taken;
    }
  }

  // Cuts the last of so many strings to the bytes that are there if its length says more, and makes it no UTF-8, so
  // that the model rejects it, as it rejects an empty one.
  void cut(uint64_t num_strings) {
    if (!is_readable_ || left_ == 0 || num_strings_ != num_strings) return;
    uint32_t length = 0;
    std::memcpy(&length, length_at_, sizeof(length));
    length -= static_cast<uint32_t>(left_);
    std::memcpy(length_at_, &length, sizeof(length));
    if (first_at_ != nullptr) *first_at_ = kNeverUtf8;
    left_ = 0;
  }

  // Whether these are so many strings, and the last one ends where its bytes do.
  bool is_complete(uint64_t num_strings) const { return is_readable_ && left_ == 0 && num_strings_ == num_strings; }

  // Of all buffers, whether or not they hold strings.
  size_t size_bytes() const { return size_bytes_; }

 private:
  static constexpr char kNeverUtf8 = '\xff';

  uint64_t num_strings_ = 0;
  size_t size_bytes_ = 0;
  char* length_at_ = nullptr;  // of the last string, as all below
  char* first_at_ = nullptr;
  size_t left_ = 0;
  bool is_readable_ = true;
};

class CallPlan {
 public:
  explicit CallPlan(size_t most_bytes) : most_bytes_(most_bytes) {}

  // Begins a batch, or goes on with one: `address` is the same as before only where a batch grows that holds something.
  void begin(const void* address) {
    if (address != address_) content_ = Content::kNothing;
    address_ = address;
  }

  // Adds a request to the batch if it fits, and returns whether it did. The first request always joins.
  bool include(bool is_complete, size_t size_bytes) {
    if (content_ == Content::kNothing) {
      content_ = is_complete ? Content::kComplete : Content::kDamaged;
      size_bytes_ = size_bytes;
      return true;
    }
    const bool fits = size_bytes_ <= most_bytes_ && size_bytes <= most_bytes_ - size_bytes_;
    if (!is_complete || content_ != Content::kComplete || !fits) return false;
    size_bytes_ += size_bytes;
    return true;
  }

 private:
  enum class Content { kNothing, kComplete, kDamaged };

  size_t most_bytes_;
  size_t size_bytes_ = 0;  // of what is in the batch
  const void* address_ = nullptr;
  Content content_ = Content::kNothing;
};

}  // namespace hplm
