// Triton's custom batching: a thin shell around `CallPlan`, for a model that queues what a call brings, and around
// `BatchPlan`, for one that runs it as one batch: `hplm_upper` in scheduling mode `triton`. The model's configuration says
// which.
//
// Triton asks about the same requests again and again, on a thread that all requests wait for, and lets a batch grow
// afterwards without saying what is in it already. So nothing is allocated in a walk along the queue, `BatchPlan` counts
// nothing beyond one walk, and the model looks at its limits once more.
//
// `CallPlan` must know what is in a batch that grows. Triton keeps the pointer that ModelBatchInitialize sets in the
// batch itself, and holds the last batch while it takes the next one. So the pointer of the next batch lies elsewhere,
// and that of a batch that grows lies where it lay. What may join counts as being in the batch: without a delay Triton
// takes it at once. Where a batch that grows must reject the first request that waits, Triton asks again and again until
// an instance has taken the batch, which is soon, since such a model only takes requests in.
#include <cstring>
#include <ctime>
#include <memory>
#include <string>

#include "batch_plan.h"
#include "parameters.h"
#include "call_plan.h"
#include "triton_api.h"

#define HPLM_TEXT_OF(value) #value
#define HPLM_TEXT(value) HPLM_TEXT_OF(value)

#ifndef HPLM_PLAN_VERSION
#error "HPLM_PLAN_VERSION says how the configuration's parameters and the tickets are to be read"
#endif

// Readable in the file without loading it.
extern "C" HPLM_EXPORTED const char hplm_deadline_batcher[] =
    "hplm deadline batcher, plan " HPLM_TEXT(HPLM_PLAN_VERSION) ", triton api " HPLM_TEXT(
        HPLM_TRITON_API_MAJOR) "." HPLM_TEXT(HPLM_TRITON_API_MINOR) ";";

namespace {

// One thread of Triton's forms the batches of a model, one after the other, so one plan serves them all. Without a plan
// every request joins, as if there were no plugin.
struct Batcher {
  std::unique_ptr<hplm::BatchPlan> plan;
  std::unique_ptr<hplm::CallPlan> calls;
};

bool worked(TRITONSERVER_Error* error) {
  if (error != nullptr) TRITONSERVER_ErrorDelete(error);
  return error == nullptr;
}

void say(HplmLogLevel level, const std::string& message) {
  worked(TRITONSERVER_LogMessage(level, "deadline_batcher", 0, ("deadline batcher: " + message).c_str()));
}

void say_not_used(const std::string& reason) {
  say(HPLM_LOG_WARN, reason +
                         "; it is not used, so batches are closed by their number of rows alone, and a request that is "
                         "damaged or large may fail those that share its batch");
}

bool fits_this_triton() {
  uint32_t major = 0, minor = 0;
  if (!worked(TRITONBACKEND_ApiVersion(&major, &minor))) return false;
  if (major == HPLM_TRITON_API_MAJOR && minor >= HPLM_TRITON_API_MINOR) return true;
  say_not_used("it was built for version " HPLM_TEXT(HPLM_TRITON_API_MAJOR) "." HPLM_TEXT(
                   HPLM_TRITON_API_MINOR) " of Triton's backend interface, and this Triton has " +
               std::to_string(major) + "." + std::to_string(minor));
  return false;
}

bool read_config(TRITONBACKEND_Model* model, std::string* config) {
  TRITONSERVER_Message* message = nullptr;
  if (!worked(TRITONBACKEND_ModelConfig(model, 1, &message))) return false;
  const char* text = nullptr;
  size_t size = 0;
  const bool is_read = worked(TRITONSERVER_MessageSerializeToJson(message, &text, &size));
  if (is_read) config->assign(text, size);
  worked(TRITONSERVER_MessageDelete(message));
  return is_read;
}

bool is_of_this_release(const hplm::Parameters& parameters) {
  std::string version;
  if (parameters.find("plan_version", &version) && version == HPLM_TEXT(HPLM_PLAN_VERSION)) return true;
  say_not_used("it is of another release than the repository, which must be exported again");
  return false;
}

bool is_limit(double value) {
  return value >= 1 && value <= 1e9;
}

std::unique_ptr<hplm::CallPlan> call_plan_of(const hplm::Parameters& parameters) {
  if (!parameters.has_number("max_queue_delay_microseconds", 0)) {
    say_not_used("max_queue_delay_microseconds of a model that queues must be 0");
    return nullptr;
  }
  double bytes = 0;
  if (!parameters.number("max_call_bytes", &bytes) || !is_limit(bytes)) {
    say_not_used("the model parameter max_call_bytes is missing or no limit");
    return nullptr;
  }
  const auto most_bytes = static_cast<size_t>(bytes);
  say(HPLM_LOG_INFO, "several requests share a call up to " + std::to_string(most_bytes) +
                         " bytes; a string that is shorter than its length says is cut");
  return std::make_unique<hplm::CallPlan>(most_bytes);
}

std::unique_ptr<hplm::BatchPlan> plan_of(const hplm::Parameters& parameters) {
  double rows = 0, tokens = 0, slots = 0;
  hplm::CostModel cost;
  const struct {
    const char* name;
    double* value;
  } wanted[] = {
      {"max_rows", &rows},
      {"max_tokens", &tokens},
      {"slots", &slots},
      {"cost_constant_us", &cost.constant_us},
      {"cost_per_row_us", &cost.per_row_us},
      {"cost_per_token_us", &cost.per_token_us},
      {"cost_per_squared_length_us", &cost.per_squared_length_us},
      {"cost_per_adapter_us", &cost.per_adapter_us},
  };
  for (const auto& each : wanted) {
    if (!parameters.number(each.name, each.value)) {
      say_not_used(std::string("the model parameter ") + each.name + " is missing or no number");
      return nullptr;
    }
  }
  if (!is_limit(rows) || !is_limit(tokens) || !is_limit(slots - 1)) {
    say_not_used("the limits in the model's parameters are none");
    return nullptr;
  }
  // Slot 0 is the identity.
  const hplm::Limits limits{static_cast<size_t>(rows), static_cast<size_t>(tokens), static_cast<size_t>(slots) - 1};
  say(HPLM_LOG_INFO, "batches hold up to " + std::to_string(limits.max_rows) + " rows, " +
                         std::to_string(limits.max_tokens) + " tokens and " + std::to_string(limits.max_adapters) +
                         " hPLMs, and end before their deadlines");
  return std::make_unique<hplm::BatchPlan>(limits, cost);
}

int64_t now_us() {
  timespec now{};
  clock_gettime(CLOCK_MONOTONIC, &now);
  return static_cast<int64_t>(now.tv_sec) * 1000000 + now.tv_nsec / 1000;
}

struct Tickets {
  const hplm::Ticket* first = nullptr;
  size_t count = 0;
};

// Nothing where a request's tickets cannot be read here; the model says what is wrong with them.
Tickets tickets_of(TRITONBACKEND_Request* request) {
  TRITONBACKEND_Input* input = nullptr;
  const int64_t* shape = nullptr;
  uint32_t num_dims = 0, num_buffers = 0;
  uint64_t size = 0;
  const void* buffer = nullptr;
  HplmMemoryType memory = HPLM_MEMORY_CPU;
  int64_t memory_id = 0;
  const bool is_read =
      worked(TRITONBACKEND_RequestInput(request, "TICKET", &input)) &&
      worked(TRITONBACKEND_InputProperties(input, nullptr, nullptr, &shape, &num_dims, nullptr, &num_buffers)) &&
      num_buffers == 1 && num_dims == 2 && shape[1] * sizeof(int64_t) == sizeof(hplm::Ticket) &&
      worked(TRITONBACKEND_InputBuffer(input, 0, &buffer, &size, &memory, &memory_id)) && memory < HPLM_MEMORY_GPU &&
      size == static_cast<uint64_t>(shape[0]) * sizeof(hplm::Ticket) &&
      reinterpret_cast<uintptr_t>(buffer) % alignof(hplm::Ticket) == 0;
  if (!is_read) return {};
  const Tickets tickets{static_cast<const hplm::Ticket*>(buffer), static_cast<size_t>(shape[0])};
  return tickets.count > 0 && tickets.first->version == hplm::kTicketVersion ? tickets : Tickets{};
}

struct Content {
  bool is_complete = true;
  size_t size_bytes = 0;

  void add(const Content& other) {
    is_complete = is_complete && other.is_complete;
    size_bytes += other.size_bytes;
  }
};

// Strings are not complete where they lie in another memory, which is not read here. Triton's interface says that buffers
// are not to be changed; a damaged string is changed all the same, since no model sees it otherwise. A buffer is the
// request's own copy of what was sent, or memory that an administrator has registered, and only this model reads it.
Content strings_of(TRITONBACKEND_Input* input, const int64_t* shape, uint32_t num_dims, uint32_t num_buffers) {
  hplm::StringCheck check;
  bool is_readable = num_buffers > 0;
  uint64_t num_strings = 1;
  for (uint32_t dim = 0; dim < num_dims; ++dim) num_strings *= static_cast<uint64_t>(shape[dim]);
  for (uint32_t index = 0; index < num_buffers; ++index) {
    const void* buffer = nullptr;
    uint64_t size = 0;
    HplmMemoryType memory = HPLM_MEMORY_CPU;
    int64_t memory_id = 0;
    if (!worked(TRITONBACKEND_InputBuffer(input, index, &buffer, &size, &memory, &memory_id)) ||
        memory >= HPLM_MEMORY_GPU) {
      is_readable = false;
      break;
    }
    check.read(const_cast<void*>(buffer), size);
  }
  if (is_readable) check.cut(num_strings);
  return {is_readable && check.is_complete(num_strings), check.size_bytes()};
}

Content input_of(TRITONBACKEND_Request* request, uint32_t index) {
  TRITONBACKEND_Input* input = nullptr;
  HplmDataType type = 0;
  const int64_t* shape = nullptr;
  uint32_t num_dims = 0, num_buffers = 0;
  uint64_t size = 0;
  if (!worked(TRITONBACKEND_RequestInputByIndex(request, index, &input)) ||
      !worked(TRITONBACKEND_InputProperties(input, nullptr, &type, &shape, &num_dims, &size, &num_buffers))) {
    return {false, 0};
  }
  return type == HPLM_DATA_STRINGS ? strings_of(input, shape, num_dims, num_buffers) : Content{true, size};
}

// A parameter's name and text; a number counts for nothing beside its name.
size_t parameter_bytes(TRITONBACKEND_Request* request, uint32_t index) {
  const char* name = nullptr;
  HplmParameterType type = 0;
  const void* value = nullptr;
  if (!worked(TRITONBACKEND_RequestParameter(request, index, &name, &type, &value))) return 0;
  const size_t value_bytes = type == HPLM_PARAMETER_STRING ? std::strlen(static_cast<const char*>(value)) : 0;
  return std::strlen(name) + value_bytes;
}

// What the Python backend copies into shared memory, as it was sent: tensors, parameters and the ID.
Content content_of(TRITONBACKEND_Request* request) {
  Content content;
  const char* id = nullptr;
  if (worked(TRITONBACKEND_RequestId(request, &id))) content.size_bytes += std::strlen(id);
  uint32_t count = 0;
  if (worked(TRITONBACKEND_RequestParameterCount(request, &count))) {
    for (uint32_t index = 0; index < count; ++index) content.size_bytes += parameter_bytes(request, index);
  }
  if (!worked(TRITONBACKEND_RequestInputCount(request, &count))) return {false, content.size_bytes};
  for (uint32_t index = 0; index < count; ++index) content.add(input_of(request, index));
  return content;
}

}  // namespace

TRITONSERVER_Error* TRITONBACKEND_ModelBatcherInitialize(TRITONBACKEND_Batcher** batcher, TRITONBACKEND_Model* model) {
  auto made = std::make_unique<Batcher>();
  std::string config;
  if (fits_this_triton() && read_config(model, &config)) {
    const hplm::Parameters parameters(config);
    std::string plan;
    if (is_of_this_release(parameters)) {
      if (parameters.find("plan", &plan) && plan == "calls") {
        made->calls = call_plan_of(parameters);
      } else {
        made->plan = plan_of(parameters);
      }
    }
  }
  *batcher = reinterpret_cast<TRITONBACKEND_Batcher*>(made.release());
  return nullptr;
}

TRITONSERVER_Error* TRITONBACKEND_ModelBatcherFinalize(TRITONBACKEND_Batcher* batcher) {
  delete reinterpret_cast<Batcher*>(batcher);
  return nullptr;
}

TRITONSERVER_Error* TRITONBACKEND_ModelBatchInitialize(const TRITONBACKEND_Batcher* batcher, void** batch) {
  const auto* own = reinterpret_cast<const Batcher*>(batcher);
  if (own->plan != nullptr) own->plan->begin();
  if (own->calls != nullptr) own->calls->begin(batch);
  *batch = const_cast<Batcher*>(own);
  return nullptr;
}

TRITONSERVER_Error* TRITONBACKEND_ModelBatchIncludeRequest(
    TRITONBACKEND_Request* request, void* batch, bool* should_include) {
  const auto* own = static_cast<const Batcher*>(batch);
  *should_include = true;
  if (own == nullptr) return nullptr;
  if (own->plan != nullptr) {
    const Tickets tickets = tickets_of(request);
    *should_include = own->plan->include(tickets.first, tickets.count, now_us());
  }
  if (own->calls != nullptr) {
    const Content content = content_of(request);
    *should_include = own->calls->include(content.is_complete, content.size_bytes);
  }
  return nullptr;
}

TRITONSERVER_Error* TRITONBACKEND_ModelBatchFinalize(void*) {
  return nullptr;
}
