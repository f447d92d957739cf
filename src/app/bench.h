// The verb bench: step, prefill, serve.
#pragma once

#include <CLI/CLI.hpp>
#include <vector>

#include "app/runtime.h"

namespace splash::app {

void add_bench_verb(CLI::App& app, int& exit_code);

// The upper one of the two middle values where their number is even; 0 of nothing.
double median(std::vector<double> values);

// bench serve, in a file of its own.
struct ServeBenchOptions {
  ModelOptions model;
  int clients = 4;
  int turns = 2;           // of each client's conversation; the first one is cold
  int prompt_words = 200;  // of the first turn
  int tokens = 64;         // of each reply
  bool as_json = false;
};
int run_serve_bench(const ServeBenchOptions& options);

}  // namespace splash::app
