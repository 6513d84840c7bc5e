// What the tests in C++ share. Each check that fails is one line; the process then ends with 1.
#pragma once

#include <cstdio>

static int num_failures = 0;

#define CHECK(condition)                                        \
  if (!(condition)) {                                           \
    std::printf("%s:%d: %s\n", __func__, __LINE__, #condition); \
    ++num_failures;                                             \
  }
