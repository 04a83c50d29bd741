// What an embedded trainer tells of the steps that are over: seconds by lane, bytes, a trace.
#include <fstream>
#include <sstream>
#include <string>

#include "runtime/base/error.hpp"
#include "tests/engine/embedded_fixture.hpp"

namespace spillway::engine {
namespace {

double seconds(const EmbeddedTrainer& trainer, plan::Lane lane) {
  return trainer.use().busy_seconds[static_cast<std::size_t>(lane)];
}

TEST_F(EmbeddedTrainerTest, CountsTheUpdateOfTheLastStepAlone) {
  EmbeddedOptions options = options_for();
  options.nvme = {directory_.path()};
  const auto trainer = make(options);
  train(*trainer, 1, 1);
  // State is written by the update, which is a plan of its own.
  EXPECT_GT(seconds(*trainer, plan::Lane::nvme_write), 0);
  const Bytes written = trainer->use().written;
  EXPECT_GT(written, 0_B);

  for (std::size_t i = 1; i < model_.sizes.size(); ++i) give(*trainer, i, 2);
  // The plan that is under way is left out: it waits for a gradient.
  EXPECT_GT(seconds(*trainer, plan::Lane::nvme_write), 0);
  trainer->discard_gradients();
  EXPECT_EQ(trainer->use().written, written);

  for (std::size_t i = 1; i < model_.sizes.size(); ++i) give(*trainer, i, 2);
  const Tensor infinite(model_.sizes[0], INFINITY);
  trainer->add_gradient(0, bytes_of(infinite));
  ASSERT_TRUE(trainer->step({}).skipped);
  EXPECT_EQ(seconds(*trainer, plan::Lane::nvme_write), 0);  // it had no update
}

TEST_F(EmbeddedTrainerTest, WritesATraceOfItsFirstPlans) {
  EmbeddedOptions options = options_for();
  EXPECT_THROW(make(options)->write_trace(directory_.path() / "none"), Error);
  options.traces = true;
  const auto trainer = make(options);
  train(*trainer, 1, 2);
  const std::filesystem::path path = directory_.path() / "trace.json";
  trainer->write_trace(path);
  std::stringstream text;
  text << std::ifstream(path).rdbuf();
  for (const char* part : {"\"traceEvents\"", "\"external\"", "\"update\"", "\"grad_norm\""}) {
    EXPECT_NE(text.str().find(part), std::string::npos) << part;
  }
}

}  // namespace
}  // namespace spillway::engine
