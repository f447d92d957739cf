// The verbs that make and inspect packs: pack, info, verify, synth.
#pragma once

#include <CLI/CLI.hpp>

namespace splash::app {

// Registers the subcommands; when one is chosen, `exit_code` is set to what main() should return.
void add_pack_verbs(CLI::App& app, int& exit_code);

}  // namespace splash::app
