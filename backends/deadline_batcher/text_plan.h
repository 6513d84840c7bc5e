// Decides which requests share a batch of texts: all do, but one with a string that is not complete is alone. Triton's
// core does not look at the end of a tensor's last string; the Python backend does, and fails the whole batch of it.
// A plan knows nothing of Triton and allocates nothing. The same calls give the same answers.
//
// Usage:
//     TextPlan plan;
//     plan.begin(place);
//     StringCheck check;
//     check.read(buffer, size);  // each buffer of a tensor
//     plan.include(check.is_complete(num_strings));
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

 private:
  uint64_t num_strings_ = 0;
  size_t left_ = 0;  // of the last string
  bool is_readable_ = true;
};

class TextPlan {
 public:
  // Begins a batch, or goes on with one: `place` is the same as before only where a batch grows that holds something.
  void begin(const void* place) {
    if (place != place_) content_ = Content::kNothing;
    place_ = place;
  }

  // Adds a request to the batch if it fits, and returns whether it did. The first request always joins.
  bool include(bool is_complete) {
    if (content_ == Content::kNothing) {
      content_ = is_complete ? Content::kComplete : Content::kDamaged;
      return true;
    }
    return is_complete && content_ == Content::kComplete;
  }

 private:
  enum class Content { kNothing, kComplete, kDamaged };

  const void* place_ = nullptr;
  Content content_ = Content::kNothing;
};

}  // namespace hplm
