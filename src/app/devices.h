// The verb devices.
#pragma once

#include <CLI/CLI.hpp>

namespace splash::app {

void add_devices_verb(CLI::App& app, int& exit_code);

}  // namespace splash::app
