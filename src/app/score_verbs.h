// `splash score` and `splash draft`: what the model computes for given token ids, written as safetensors.
#pragma once

#include <CLI/CLI.hpp>

namespace splash::app {

void add_score_verbs(CLI::App& app, int& exit_code);

}  // namespace splash::app
