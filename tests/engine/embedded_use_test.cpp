// What an embedded trainer uses: seconds by lane and bytes of the steps that are over, a trace, and
// memory.
#include <unistd.h>

#include <fstream>
#include <sstream>
#include <string>
#include <vector>

#include "runtime/base/error.hpp"
#include "tests/engine/embedded_fixture.hpp"

namespace spillway::engine::embedded_use_test {
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

/// Returns the bytes of memory that this process has touched.
double touched() {
  std::ifstream file("/proc/self/statm");
  double mapped = 0;
  double resident = 0;
  file >> mapped >> resident;
  return resident * static_cast<double>(sysconf(_SC_PAGESIZE));
}

TEST(EmbeddedMemory, OfAGradientIsTakenWhenThereIsOne) {
  constexpr std::uint64_t kElements = (16U << 20) + 5;
  const std::vector<std::uint16_t> values(kElements);
  const std::span bytes = std::as_bytes(std::span(values));
  EmbeddedOptions options;
  options.dtype = DType::bf16;
  options.state_format = StateFormat::int8;
  options.groups = {cpu_adam::AdamOptions{}};
  options.tile_parameters = 1U << 18;  // staging is small
  const std::vector<EmbeddedParameter> parameters{
      {.name = "weight", .elements = kElements, .values = bytes.data()}};
  const double before = touched();
  EmbeddedTrainer trainer(options, parameters);
  const double kept = (touched() - before) / kElements;
  // Values and state, and no gradient of 2 bytes. AddressSanitizer adds a byte.
  EXPECT_GT(kept, 2 + 4.03);
  EXPECT_LT(kept, 2 + 4.03 + 1.5);
  trainer.add_gradient(0, bytes);
  EXPECT_NEAR((touched() - before) / kElements, kept + 2, 0.25);
}

}  // namespace
}  // namespace spillway::engine::embedded_use_test
