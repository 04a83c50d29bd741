// `spillway bench`: what this machine can do. Each subcommand has a file of its own.
#include "tools/cli/commands.hpp"

namespace spillway::cli {

void add_bench(Command app, Session& session) {
  const Command bench = app.add_group("bench", "Measures this machine against its own limits");
  add_bench_adam(bench, session);
  add_bench_comm(bench, session);
  add_bench_gpu(bench, session);
  add_bench_nvme(bench, session);
  add_bench_pipeline(bench, session);
  add_bench_swap(bench, session);
  add_bench_step(bench, session);
}

}  // namespace spillway::cli
