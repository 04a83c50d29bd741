"""`spillway bench nvme` and `bench swap` as a user runs them. usage: bench_disk_test.py PROGRAM"""

from program_test_case import ProgramTestCase, main


class Disk(ProgramTestCase):
    def test_nvme_measures_every_engine_verifies_and_leaves_nothing_behind(self):
        disk = self.drive("disk")
        document = self.document("bench", "nvme", "--dir", disk, "--size", "16MiB", "--depths",
                                 "2,4", "--blocks", "256KiB", "--point-ms", 10)
        self.assertEqual(len(document["sequential"]), 3 * 3 * 2)
        self.assertEqual(len(document["tiles"]), 3 * 3)
        for row in document["sequential"]:
            self.assertGreater(row["gigabytes_per_second"], 0)
        self.assertIs(document["verified"], True)
        self.assertEqual(list(disk.iterdir()), [])

    def test_nvme_measures_for_150_milliseconds_unless_told_otherwise(self):
        told = self.succeed("bench", "nvme", "--help").stdout
        self.assertRegex(told, r"--point-ms .*\b150\b")

    def test_swap_compares_the_pipeline_with_its_parts(self):
        disk = self.drive("disk")
        # int8 has a page of scales for each tile beside 6 bytes a parameter.
        for form, bytes_of_tile in (("fp32", 12 * 8192), ("split", 12 * 8192),
                                    ("int8", 6 * 8192 + 4096)):
            document = self.document("bench", "swap", "--dir", disk, "--size", 100000, "--tile",
                                     8192, "--buffers", 4, "--rounds", 2, "--format", form)
            self.assertEqual(document["state_format"], form)
            self.assertEqual(document["parameters"], 13 * 8192)
            self.assertIs(document["verified"], True)
            self.assertEqual(document["wear"]["bytes_written_a_step"], 13 * bytes_of_tile)
            self.assertGreater(document["ratio_to_limit"], 0)
        self.refused("bench", "swap", "--size", 0)
        self.refused("bench", "swap", "--format", "fp8")


if __name__ == "__main__":
    main()
