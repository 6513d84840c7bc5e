// Decides which requests share a call of a model that chooses its batches itself. Two kinds of request would fail all
// others of their call, and so are kept from them:
// - One with a damaged string, which is not complete. Triton's core does not look at the end of a tensor's last string;
//   the Python backend does. It is in a batch of its own.
// - A large one. The Python backend copies a batch into shared memory, and fails all of it where there is too little. So
//   a batch ends before it has more bytes than a limit; a request that is larger is in a batch of its own.
// A plan knows nothing of Triton and allocates nothing. The same calls give the same answers.
//
// Usage:
//     CallPlan plan(most_bytes);
//     plan.begin(address);
//     StringCheck check;
//     check.read(buffer, size);  // each buffer of a tensor
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
  void read(const void* buffer, size_t size) {
    const char* at = static_cast<const char*>(buffer);
    size_bytes_ += size;
    while (size > 0 && is_readable_) {
      if (left_ == 0) {
        uint32_t length = 0;
        is_readable_ = size >= sizeof(length);
        if (!is_readable_) return;
        std::memcpy(&length, at, sizeof(length));
        at += sizeof(length);
        size -= sizeof(length);
        left_ = length;
        ++num_strings_;
      }
      const size_t taken = std::min(left_, size);
      at += taken;
      size -= taken;
      left_ -= taken;
    }
  }

  // Whether these are so many strings, and the last one ends where its bytes do.
  bool is_complete(uint64_t num_strings) const { return is_readable_ && left_ == 0 && num_strings_ == num_strings; }

  // Of all buffers, whether or not they hold strings.
  size_t size_bytes() const { return size_bytes_; }

 private:
  uint64_t num_strings_ = 0;
  size_t size_bytes_ = 0;
  size_t left_ = 0;  // of the last string
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
