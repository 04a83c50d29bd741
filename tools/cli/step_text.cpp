#include "tools/cli/step_text.hpp"

#include <fmt/format.h>

#include <sstream>
#include <vector>

namespace spillway::cli {
namespace {

/// Operations of one block, one a line.
struct Group {
  std::size_t count = 0;
  std::string lines;
};

}  // namespace

std::string text_by_block(const plan::StepPlan& step, const plan::Workload& workload) {
  const std::size_t blocks = workload.blocks.size();
  std::vector<Group> groups(blocks + 1);
  std::istringstream lines(plan::to_text(step));
  std::string line;
  for (const plan::Op& op : step.ops) {
    std::getline(lines, line);
    Group& group = groups[op.kind == plan::OpKind::commit ? blocks : op.block];
    ++group.count;
    group.lines += line + '\n';
  }
  std::string text;
  for (std::size_t i = 0; i < groups.size(); ++i) {
    if (groups[i].count == 0) continue;
    const std::string title =
        i < blocks ? fmt::format("block {} ({})", i, workload.blocks[i].name) : "all blocks";
    text += fmt::format("{}: {} operation(s)\n{}", title, groups[i].count, groups[i].lines);
  }
  return text;
}

}  // namespace spillway::cli
