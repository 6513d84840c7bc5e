// Parameters of a model's configuration, read from Triton's JSON:
//     … "parameters": {"max_rows": {"string_value": "64"}, …} …
// and its own numbers:
//     … "max_queue_delay_microseconds": 0, …
#pragma once

#include <cmath>
#include <cstdint>
#include <cstdlib>
#include <string>
#include <utility>

namespace hplm {

// A quotation mark inside a JSON string has a backslash before it, so what looks like a parameter is one.
class Parameters {
 public:
  explicit Parameters(std::string config) : config_(std::move(config)) {}

  // Reads a parameter's text; returns false where there is none.
  bool find(const std::string& name, std::string* value) const {
    const std::string quoted = "\"" + name + "\"";
    for (size_t found = config_.find(quoted); found != std::string::npos; found = config_.find(quoted, found + 1)) {
      size_t position = found + quoted.size();
      if (take(&position, ":") && take(&position, "{") && take(&position, "\"string_value\"") && take(&position, ":") &&
          take(&position, "\"")) {
        const size_t end = config_.find('"', position);
        if (end == std::string::npos) return false;
        *value = config_.substr(position, end - position);
        return true;
      }
    }
    return false;
  }

  // Reads a finite number; returns false where there is none.
  bool number(const std::string& name, double* value) const {
    std::string text;
    if (!find(name, &text) || text.empty()) return false;
    char* end = nullptr;
    const double read = std::strtod(text.c_str(), &end);
    if (*end != '\0' || !std::isfinite(read)) return false;
    *value = read;
    return true;
  }

  // Whether there is a number of the configuration's own of this name and value.
  bool has_number(const std::string& name, uint64_t value) const {
    const std::string quoted = "\"" + name + "\"", digits = std::to_string(value);
    for (size_t found = config_.find(quoted); found != std::string::npos; found = config_.find(quoted, found + 1)) {
      size_t position = found + quoted.size();
      if (take(&position, ":") && take(&position, digits)) return config_.find_first_of(",}", position) == position;
    }
    return false;
  }

 private:
  bool take(size_t* position, const std::string& expected) const {
    *position = config_.find_first_not_of(" \t\r\n", *position);
    if (*position == std::string::npos || config_.compare(*position, expected.size(), expected) != 0) return false;
    *position += expected.size();
    return true;
  }

  std::string config_;
};

}  // namespace hplm
