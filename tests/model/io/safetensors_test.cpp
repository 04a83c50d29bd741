#include "runtime/model/hf/safetensors.hpp"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <cstring>
#include <map>
#include <string>

#include "runtime/base/error.hpp"
#include "tests/model/io/scratch.hpp"

namespace spillway::model::safetensors_test {
namespace {

using ::testing::HasSubstr;
using testing::Scratch;
using testing::slurp;
using testing::spit;

/// A file with this header text and `data_size` bytes counting up from 0.
std::string file_of(const std::string& header, std::size_t data_size) {
  std::string file(8, '\0');
  const std::uint64_t size = header.size();
  std::memcpy(file.data(), &size, sizeof size);
  file += header;
  for (std::size_t i = 0; i < data_size; ++i) file += static_cast<char>(i);
  return file;
}

const std::string kHeader = R"({"__metadata__":{"format":"pt"},)"
                            R"("a":{"dtype":"F32","shape":[2,2],"data_offsets":[0,16]},)"
                            R"("b":{"dtype":"BF16","shape":[3],"data_offsets":[18,24]},)"
                            R"("c":{"dtype":"F16","shape":[],"data_offsets":[16,18]},)"
                            R"("e":{"dtype":"I64","shape":[0,7],"data_offsets":[24,24]}}   )";

SafetensorsHeader parse(const std::string& header, std::uint64_t data_size) {
  return parse_safetensors_header(header, Bytes{data_size}, "weights");
}

TEST(Safetensors, ReadsAHeader) {
  const SafetensorsHeader header = parse(kHeader, 24);
  EXPECT_EQ(header.metadata.at("format"), "pt");
  ASSERT_EQ(header.tensors.size(), 4U);
  const StoredTensor& b = header.tensors.at("b");
  EXPECT_EQ(b.dtype(), DType::bf16);
  EXPECT_EQ(b.shape, std::vector<std::uint64_t>{3});
  EXPECT_EQ(b.offset.value(), 8 + kHeader.size() + 18);
  EXPECT_EQ(header.tensors.at("c").count().value(), 1U);
  EXPECT_EQ(header.tensors.at("e").count().value(), 0U);
  EXPECT_EQ(header.tensors.at("e").dtype(), std::nullopt);
}

// The sizes of the format's own description (huggingface/safetensors, README).
TEST(Safetensors, CountsTheBitsOfEveryElementType) {
  const std::map<std::string, std::uint64_t> bits{
      {"F64", 64},        {"I64", 64},       {"U64", 64},    {"C64", 64},    {"F32", 32},
      {"I32", 32},        {"U32", 32},       {"F16", 16},    {"BF16", 16},   {"I16", 16},
      {"U16", 16},        {"I8", 8},         {"U8", 8},      {"BOOL", 8},    {"F8_E4M3", 8},
      {"F8_E5M2", 8},     {"F8_E8M0", 8},    {"F6_E2M3", 6}, {"F6_E3M2", 6}, {"F4", 4},
      {"F8_E4M3FNUZ", 8}, {"F8_E5M2FNUZ", 8}};
  for (const auto& [type, width] : bits) {
    const std::string header = R"({"x":{"dtype":")" + type + R"(","shape":[8],"data_offsets":[0,)" +
                               std::to_string(width) + "]}}";
    EXPECT_NO_THROW(static_cast<void>(parse(header, width))) << header;
  }
}

TEST(Safetensors, WidensPartsOfTensors) {
  const Scratch scratch;
  std::string content = file_of(kHeader, 24);
  const std::size_t data = 8 + kHeader.size();
  const std::array<float, 4> a{1, -2.5F, 0, 1e30F};
  std::memcpy(content.data() + data, a.data(), sizeof a);
  const std::uint16_t c = to_fp16(-0.125F);
  std::memcpy(content.data() + data + 16, &c, sizeof c);
  const std::array<std::uint16_t, 3> b{to_bf16(3), to_bf16(-7), to_bf16(0.5F)};
  std::memcpy(content.data() + data + 18, b.data(), sizeof b);
  spit(scratch.path() / "w", content);

  const SafetensorsFile file(scratch.path() / "w");
  std::array<float, 2> two{};
  file.read(file.header().tensors.at("a"), ElementCount{1}, two);
  EXPECT_EQ(two, (std::array<float, 2>{-2.5F, 0}));
  file.read(file.header().tensors.at("b"), ElementCount{1}, two);
  EXPECT_EQ(two, (std::array<float, 2>{-7, 0.5F}));
  file.read(file.header().tensors.at("c"), ElementCount{0}, std::span(two).first(1));
  EXPECT_EQ(two[0], -0.125F);
  EXPECT_THROW(file.read(file.header().tensors.at("e"), ElementCount{0}, {}), Error);
}

TEST(Safetensors, ReadsLongTensorsAcrossChunks) {
  const Scratch scratch;
  constexpr std::size_t kCount = 50001;
  {
    const std::array<TensorToStore, 1> tensors{{{"x", {kCount}}}};
    SafetensorsWriter writer(scratch.path() / "w", tensors, DType::bf16);
    std::vector<std::uint16_t> values(kCount);
    for (std::size_t i = 0; i < kCount; ++i) values[i] = static_cast<std::uint16_t>(i * 7 % 30000);
    writer.append(std::as_bytes(std::span(values)));
    writer.finish();
  }
  const SafetensorsFile file(scratch.path() / "w");
  std::vector<float> values(kCount - 3);
  file.read(file.header().tensors.at("x"), ElementCount{3}, values);
  for (std::size_t i = 0; i < values.size(); ++i) {
    ASSERT_EQ(values[i], from_bf16(static_cast<std::uint16_t>((i + 3) * 7 % 30000))) << i;
  }
}

struct BadHeader {
  const char* header;
  std::uint64_t data_size;
  const char* message;
};
void PrintTo(const BadHeader& bad, std::ostream* out) { *out << bad.header; }

class SafetensorsRefusal : public ::testing::TestWithParam<BadHeader> {};

TEST_P(SafetensorsRefusal, SaysWhatIsWrong) {
  try {
    static_cast<void>(parse(GetParam().header, GetParam().data_size));
    FAIL() << "accepted " << GetParam().header;
  } catch (const Error& error) {
    EXPECT_EQ(error.code(), ErrorCode::corrupt_data);
    EXPECT_THAT(error.what(), HasSubstr("weights: "));
    EXPECT_THAT(error.what(), HasSubstr(GetParam().message));
  }
}

INSTANTIATE_TEST_SUITE_P(
    Document, SafetensorsRefusal,
    ::testing::Values(BadHeader{"", 0, "brace"}, BadHeader{" {}", 0, "brace"},
                      BadHeader{"[]", 0, "brace"}, BadHeader{"{", 0, "not valid JSON"},
                      BadHeader{"{} {}", 0, "not valid JSON"}, BadHeader{R"({"a":5})", 0, "\"a\""},
                      BadHeader{R"({"a":"x"})", 0, "a string"},
                      BadHeader{R"({"a":[1]})", 0, "a list"}, BadHeader{R"({"a":null})", 0, "null"},
                      BadHeader{R"({"a":{}})", 0, "lacks dtype"},
                      BadHeader{R"({"a":{"dtype":"F32"}})", 0, "lacks shape"},
                      BadHeader{R"({"a":{"dtype":"F32","shape":[0]}})", 0, "lacks data_offsets"},
                      BadHeader{R"({"a":{"dtype":{"x":1}}})", 0, "an object"},
                      BadHeader{R"({"a":{"dtype":"F32","other":"x"}})", 0, "\"other\""},
                      BadHeader{R"({"a":{"dtype":"F32","dtype":"F32"}})", 0, "\"dtype\""},
                      BadHeader{R"({"a":{"shape":[1],"shape":[1]}})", 0, "\"shape\""},
                      BadHeader{R"({"a":{"shape":[[1]]}})", 0, "a list"},
                      BadHeader{R"({"a":{"shape":[-1]}})", 0, "negative"},
                      BadHeader{R"({"a":{"shape":[1.5]}})", 0, "fraction"},
                      BadHeader{R"({"a":{"shape":[99999999999999999999999]}})", 0,
                                "beyond 64 bits"},
                      BadHeader{R"({"__metadata__":{"a":1}})", 0, "a number"},
                      BadHeader{R"({"__metadata__":{"a":[1]}})", 0, "a list"},
                      BadHeader{R"({"__metadata__":{"a":"1","a":"2"}})", 0, "twice"},
                      BadHeader{R"({"__metadata__":{},"__metadata__":{}})", 0, "twice"},
                      BadHeader{"{\"\xff\":{}}", 0, "not valid JSON"}));

INSTANTIATE_TEST_SUITE_P(
    Tensors, SafetensorsRefusal,
    ::testing::Values(
        BadHeader{R"({"a":{"dtype":"F33","shape":[1],"data_offsets":[0,4]}})", 4, "\"F33\""},
        BadHeader{R"({"a":{"dtype":"F32","shape":[1],"data_offsets":[0]}})", 4, "two"},
        BadHeader{R"({"a":{"dtype":"F32","shape":[1],"data_offsets":[0,4,8]}})", 4, "two"},
        BadHeader{R"({"a":{"dtype":"F32","shape":[1],"data_offsets":[4,0]}})", 4, "before"},
        BadHeader{R"({"a":{"dtype":"F32","shape":[2],"data_offsets":[0,4]}})", 4, "[2]"},
        BadHeader{R"({"a":{"dtype":"F4","shape":[3],"data_offsets":[0,1]}})", 1, "12 bits"},
        BadHeader{R"({"a":{"dtype":"F32","shape":[4294967296,4294967296],"data_offsets":[0,0]}})",
                  0, "2^64"},
        BadHeader{R"({"a":{"dtype":"F32","shape":[1],"data_offsets":[0,4]}})", 3, "cut short"},
        BadHeader{R"({"a":{"dtype":"F32","shape":[1],"data_offsets":[0,4]}})", 5, "too long"},
        BadHeader{R"({"a":{"dtype":"F32","shape":[1],"data_offsets":[4,8]}})", 8, "hole"},
        BadHeader{R"({"a":{"dtype":"F32","shape":[1],"data_offsets":[0,4]},)"
                  R"("b":{"dtype":"F32","shape":[1],"data_offsets":[0,4]}})",
                  4, "overlap"},
        BadHeader{R"({"a":{"dtype":"F32","shape":[1],"data_offsets":[0,4]},)"
                  R"("a":{"dtype":"F32","shape":[1],"data_offsets":[4,8]}})",
                  8, "twice"},
        BadHeader{R"({"a":{"dtype":"U8","shape":[1],)"
                  R"("data_offsets":[18446744073709551615,18446744073709551614]}})",
                  1, "before"}));

TEST(Safetensors, RefusesDeepNestingAndLongShapes) {
  EXPECT_THROW(parse("{\"a\":" + std::string(100000, '['), 0), Error);
  std::string shape = "1";
  for (int i = 0; i < 100; ++i) shape += ",1";
  EXPECT_THROW(parse(R"({"a":{"shape":[)" + shape + "]}}", 0), Error);
}

TEST(Safetensors, RefusesEveryTruncationOfAFile) {
  const Scratch scratch;
  const std::string whole = file_of(kHeader, 24);
  for (std::size_t size = 0; size < whole.size(); ++size) {
    spit(scratch.path() / "w", whole.substr(0, size));
    EXPECT_THROW(SafetensorsFile(scratch.path() / "w"), Error) << size;
  }
  spit(scratch.path() / "w", whole + "x");
  EXPECT_THROW(SafetensorsFile(scratch.path() / "w"), Error);
  spit(scratch.path() / "w", whole);
  EXPECT_NO_THROW(SafetensorsFile(scratch.path() / "w"));
}

TEST(Safetensors, SurvivesEveryFlippedBit) {
  const std::string whole = file_of(kHeader, 24);
  std::size_t refused = 0;
  for (std::size_t bit = 0; bit < 8 * (8 + kHeader.size()); ++bit) {
    std::string flipped = whole;
    flipped[bit / 8] = static_cast<char>(flipped[bit / 8] ^ (1 << bit % 8));
    try {
      const auto bytes = std::as_bytes(std::span(flipped));
      const Bytes size = safetensors_header_size(bytes, Bytes{flipped.size()}, "w");
      const SafetensorsHeader header =
          parse_safetensors_header(std::string_view(flipped).substr(8, size.value()),
                                   Bytes{flipped.size() - 8 - size.value()}, "w");
      // What is accepted is consistent: it lies in the file and has the size of its shape.
      for (const auto& [name, tensor] : header.tensors) {
        EXPECT_LE(tensor.offset.value() + tensor.size.value(), flipped.size());
        if (const auto dtype = tensor.dtype()) {
          EXPECT_EQ(tensor.count().value() * size_of(*dtype), tensor.size.value());
        }
      }
    } catch (const Error& error) {
      EXPECT_EQ(error.code(), ErrorCode::corrupt_data);
      ++refused;
    }
  }
  EXPECT_GT(refused, 1000U);  // the rest are letters of names and of dtypes with equal sizes
}

TEST(Safetensors, WritesWhatItReads) {
  const Scratch scratch;
  const std::array<TensorToStore, 2> tensors{{{"z \"quoted\" \n", {2, 3}}, {"a", {}}}};
  const std::array<float, 7> values{1, 2, 3, 4, 5, 6, 7};
  {
    SafetensorsWriter writer(scratch.path() / "w", tensors, DType::fp32);
    writer.append(std::as_bytes(std::span(values).first(3)));
    writer.append(std::as_bytes(std::span(values).subspan(3)));
    writer.finish();
  }
  const SafetensorsFile file(scratch.path() / "w");
  EXPECT_EQ(file.header().metadata.at("format"), "pt");
  const StoredTensor& z = file.header().tensors.at(tensors[0].name);
  EXPECT_EQ(z.offset.value() % 8, 0U);
  std::array<float, 6> read{};
  file.read(z, ElementCount{0}, read);
  EXPECT_THAT(read, ::testing::ElementsAre(1, 2, 3, 4, 5, 6));
  EXPECT_THROW(SafetensorsWriter(scratch.path() / "w", tensors, DType::fp32), Error);
}

TEST(Safetensors, WillNotFinishAFileWithElementsMissing) {
  const Scratch scratch;
  const std::array<TensorToStore, 1> tensors{{{"a", {2}}}};
  SafetensorsWriter writer(scratch.path() / "w", tensors, DType::fp16);
  const std::array<std::byte, 2> one{};
  writer.append(one);
  EXPECT_THROW(writer.finish(), Error);
}

}  // namespace
}  // namespace spillway::model::safetensors_test
