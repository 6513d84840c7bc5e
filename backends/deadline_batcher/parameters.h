// The parameters of a model's configuration, out of the JSON that Triton makes of it:
//     … "parameters": {"max_rows": {"string_value": "64"}, …} …
#pragma once

#include <cmath>
#include <cstdlib>
#include <string>
#include <utility>

namespace hplm {

// A quotation mark inside a JSON string has a backslash before it, so what looks like a parameter is one.
class Parameters {
 public:
  explicit Parameters(std::string config) : config_(std::move(config)) {}

  // The parameter's text; false where there is none.
  bool find(const std::string& name, std::string* value) const {
    const std::string quoted = "\"" + name + "\"";
    for (size_t found = config_.find(quoted); found != std::string::npos; found = config_.find(quoted, found + 1)) {
      size_t place = found + quoted.size();
      if (take(&place, ":") && take(&place, "{") && take(&place, "\"string_value\"") && take(&place, ":") &&
          take(&place, "\"")) {
        const size_t end = config_.find('"', place);
        if (end == std::string::npos) return false;
        *value = config_.substr(place, end - place);
        return true;
      }
    }
    return false;
  }

  // A finite number; false where there is none.
  bool number(const std::string& name, double* value) const {
    std::string text;
    if (!find(name, &text) || text.empty()) return false;
    char* end = nullptr;
    const double read = std::strtod(text.c_str(), &end);
    if (*end != '\0' || !std::isfinite(read)) return false;
    *value = read;
    return true;
  }

 private:
  bool take(size_t* place, const std::string& expected) const {
    *place = config_.find_first_not_of(" \t\r\n", *place);
    if (*place == std::string::npos || config_.compare(*place, expected.size(), expected) != 0) return false;
    *place += expected.size();
    return true;
  }

  std::string config_;
};

}  // namespace hplm
