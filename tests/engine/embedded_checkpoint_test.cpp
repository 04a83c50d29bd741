// Checkpoints of parameters that lie elsewhere than those that would take them.
#include <nlohmann/json.hpp>
#include <utility>

#include "runtime/base/error.hpp"
#include "runtime/base/file.hpp"
#include "runtime/engine/sealed_json.hpp"
#include "tests/engine/embedded_fixture.hpp"

namespace spillway::engine::embedded_checkpoint_test {
namespace {

namespace fs = std::filesystem;

/// Two parameters of a size, each of a group and a unit.
class EmbeddedCheckpointTest : public EmbeddedTrainerTest {
 protected:
  using Pair = std::pair<std::uint32_t, std::uint32_t>;

  [[nodiscard]] std::unique_ptr<EmbeddedTrainer> make_two(Pair groups, Pair units) const {
    EmbeddedOptions options = options_for();
    options.device_memory = 112_KiB;
    const auto one = [&](const char* name, std::uint32_t group, std::uint32_t unit) {
      return EmbeddedParameter{.name = name,
                               .elements = ones_.size(),
                               .group = group,
                               .unit = unit,
                               .values = bytes_of(ones_).data()};
    };
    return std::make_unique<EmbeddedTrainer>(
        options,
        std::vector{one("a", groups.first, units.first), one("b", groups.second, units.second)});
  }
  [[nodiscard]] std::string refusal(const std::unique_ptr<EmbeddedTrainer>& trainer,
                                    const fs::path& folder) const {
    try {
      trainer->load(folder);
    } catch (const Error& error) {
      return error.what();
    }
    return "none";
  }

  const Tensor ones_ = Tensor(5000, 1.0F);
};

TEST_F(EmbeddedCheckpointTest, AreRefusedWhereGroupsOrUnitsAreExchanged) {
  const fs::path in_one = directory_.path() / "one", in_two = directory_.path() / "two";
  make_two({0, 1}, {0, 0})->save(in_one);
  make_two({0, 1}, {0, 1})->save(in_two);
  EXPECT_THAT(refusal(make_two({1, 0}, {0, 0}), in_one),
              testing::HasSubstr(
                  R"(number 0 is {"block":0,"elements":5000,"first":0,"group":0,"name":"a"})"
                  R"( there and {"block":0,"elements":5000,"first":8192,"group":1,"name":"a"})"));
  EXPECT_THAT(refusal(make_two({0, 0}, {0, 0}), in_one), testing::HasSubstr("number 1 is"));
  EXPECT_THAT(refusal(make_two({0, 1}, {0, 1}), in_one), testing::HasSubstr("number 1 is"));
  EXPECT_THAT(refusal(make_two({0, 1}, {1, 0}), in_two), testing::HasSubstr("number 0 is"));
  EXPECT_EQ(refusal(make_two({0, 1}, {0, 0}), in_one), "none");
  EXPECT_EQ(refusal(make_two({0, 1}, {0, 1}), in_two), "none");
}

TEST_F(EmbeddedCheckpointTest, OfBeforeTheySaidWhereStateLiesAreTaken) {
  const fs::path folder = directory_.path() / "old";
  make_two({0, 1}, {0, 0})->save(folder);
  const fs::path file = folder / "parameters.json";
  nlohmann::json document = nlohmann::json::parse(read_text_file(file, 1_MiB));
  document.erase("xxh3");
  for (nlohmann::json& parameter : document["parameters"]) {
    parameter.erase("block");
    parameter.erase("first");
    parameter["group"] = 0;  // that of what came first in the unit
  }
  write_file_atomically(file, sealed_text(file, document.dump(2)));
  EXPECT_EQ(refusal(make_two({0, 1}, {0, 0}), folder), "none");
}

}  // namespace
}  // namespace spillway::engine::embedded_checkpoint_test
