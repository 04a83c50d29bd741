// `spillway bench`: what this machine can do. Each subcommand has a file of its own.
#include "tools/cli/commands.hpp"

namespace spillway::cli {

void add_bench(CLI::App& app, Session& session) {
  CLI::App* bench = app.add_subcommand("bench", "Measures this machine against its own limits");
  bench->require_subcommand(1);
  add_bench_adam(*bench, session);
  add_bench_gpu(*bench, session);
  add_bench_nvme(*bench, session);
  add_bench_swap(*bench, session);
  add_bench_step(*bench, session);
}

}  // namespace spillway::cli
