// The verb generate: one reply in the terminal.
#pragma once

#include <CLI/CLI.hpp>

namespace splash::app {

void add_generate_verb(CLI::App& app, int& exit_code);

}  // namespace splash::app
