// The few functions of Triton's backend interface that the plugin calls, and the five that Triton calls in it.
#pragma once

#include <cstddef>
#include <cstdint>

// What the plugin was written for. Triton keeps its promise to a plugin as long as the major number stays the same and
// the minor one does not fall.
#ifndef HPLM_TRITON_API_MAJOR
#define HPLM_TRITON_API_MAJOR 1
#endif
#ifndef HPLM_TRITON_API_MINOR
#define HPLM_TRITON_API_MINOR 19
#endif

#define HPLM_EXPORTED __attribute__((visibility("default")))

extern "C" {

struct TRITONSERVER_Error;
struct TRITONSERVER_Message;
struct TRITONBACKEND_Batcher;
struct TRITONBACKEND_Input;
struct TRITONBACKEND_Model;
struct TRITONBACKEND_Request;

// Enumerations travel as integers.
using HplmDataType = int;
using HplmMemoryType = int;
using HplmParameterType = int;
using HplmLogLevel = int;

constexpr HplmMemoryType HPLM_MEMORY_CPU = 0;
constexpr HplmMemoryType HPLM_MEMORY_GPU = 2;
constexpr HplmDataType HPLM_DATA_STRINGS = 13;
constexpr HplmParameterType HPLM_PARAMETER_STRING = 0;
constexpr HplmLogLevel HPLM_LOG_INFO = 0;
constexpr HplmLogLevel HPLM_LOG_WARN = 1;

TRITONSERVER_Error* TRITONSERVER_LogMessage(HplmLogLevel level, const char* file, int line, const char* message);
void TRITONSERVER_ErrorDelete(TRITONSERVER_Error* error);
TRITONSERVER_Error* TRITONSERVER_MessageSerializeToJson(TRITONSERVER_Message* message, const char** base, size_t* size);
TRITONSERVER_Error* TRITONSERVER_MessageDelete(TRITONSERVER_Message* message);

TRITONSERVER_Error* TRITONBACKEND_ApiVersion(uint32_t* major, uint32_t* minor);
TRITONSERVER_Error* TRITONBACKEND_ModelConfig(TRITONBACKEND_Model* model, uint32_t version, TRITONSERVER_Message** out);
TRITONSERVER_Error* TRITONBACKEND_RequestId(TRITONBACKEND_Request* request, const char** id);
TRITONSERVER_Error* TRITONBACKEND_RequestParameterCount(TRITONBACKEND_Request* request, uint32_t* count);
TRITONSERVER_Error* TRITONBACKEND_RequestParameter(
    TRITONBACKEND_Request* request, uint32_t index, const char** name, HplmParameterType* type, const void** value);
TRITONSERVER_Error* TRITONBACKEND_RequestInputCount(TRITONBACKEND_Request* request, uint32_t* count);
TRITONSERVER_Error* TRITONBACKEND_RequestInputByIndex(
    TRITONBACKEND_Request* request, uint32_t index, TRITONBACKEND_Input** input);
TRITONSERVER_Error* TRITONBACKEND_RequestInput(TRITONBACKEND_Request* request, const char* name, TRITONBACKEND_Input** out);
TRITONSERVER_Error* TRITONBACKEND_InputProperties(
    TRITONBACKEND_Input* input, const char** name, HplmDataType* type, const int64_t** shape, uint32_t* num_dims,
    uint64_t* size, uint32_t* num_buffers);
TRITONSERVER_Error* TRITONBACKEND_InputBuffer(
    TRITONBACKEND_Input* input, uint32_t index, const void** buffer, uint64_t* size, HplmMemoryType* memory,
    int64_t* memory_id);

HPLM_EXPORTED TRITONSERVER_Error* TRITONBACKEND_ModelBatcherInitialize(
    TRITONBACKEND_Batcher** batcher, TRITONBACKEND_Model* model);
HPLM_EXPORTED TRITONSERVER_Error* TRITONBACKEND_ModelBatcherFinalize(TRITONBACKEND_Batcher* batcher);
HPLM_EXPORTED TRITONSERVER_Error* TRITONBACKEND_ModelBatchInitialize(
    const TRITONBACKEND_Batcher* batcher, void** batch);
HPLM_EXPORTED TRITONSERVER_Error* TRITONBACKEND_ModelBatchIncludeRequest(
    TRITONBACKEND_Request* request, void* batch, bool* should_include);
HPLM_EXPORTED TRITONSERVER_Error* TRITONBACKEND_ModelBatchFinalize(void* batch);

}  // extern "C"
