/* Every release of SGLang that has this dispatch, oldest first, and the two commits that people ask about. Read by everything.
 * A set is what the communicators are in a run of releases; a new release that changes none of them is one line, "as before".
 * Invariant: version order (a commit stands after the release that it follows), names unique. */
#include "release.h"

#include <string.h>

// clang-format off
/*                     v1  v2 quick msc symm fi pcie cpu */
#define SET_0_4_1_post7    1,  0,    0,  0,   0,  0,   0,  1
#define SET_0_4_3_post3    2,  0,    0,  0,   0,  0,   0,  1
#define SET_0_4_4          3,  0,    0,  0,   0,  0,   0,  1
#define SET_0_4_4_post2    4,  0,    0,  0,   0,  0,   0,  1
#define SET_0_4_4_post4    5,  0,    0,  0,   0,  0,   0,  1
#define SET_0_4_6_post3    6,  0,    0,  0,   0,  0,   0,  1
#define SET_0_4_7          6,  0,    0,  1,   0,  0,   0,  1
#define SET_0_4_9          6,  0,    0,  1,   0,  0,   0,  2
#define SET_0_4_9_post4    6,  0,    1,  1,   0,  0,   0,  2
#define SET_0_5_3rc2       6,  0,    1,  1,   1,  0,   0,  2
#define SET_0_5_3_post2    7,  0,    1,  1,   2,  0,   0,  2
#define SET_0_5_4          7,  0,    1,  1,   2,  0,   0,  3
#define SET_0_5_4_post1    8,  0,    1,  1,   2,  0,   0,  3
#define SET_0_5_4_post3    9,  0,    1,  1,   2,  0,   0,  3
#define SET_0_5_5_post3   10,  0,    1,  1,   2,  0,   0,  3
#define SET_0_5_7         11,  0,    1,  1,   2,  0,   0,  3
#define SET_0_5_8         11,  0,    1,  1,   2,  0,   0,  4
#define SET_bba2fc4       12,  0,    1,  1,   2,  0,   0,  4
#define SET_0be30d4       13,  0,    1,  1,   2,  0,   0,  4
#define SET_0_5_10rc0     14,  1,    1,  1,   2,  0,   0,  4
#define SET_0_5_10        15,  1,    1,  1,   2,  0,   0,  4
#define SET_0_5_11        15,  2,    1,  1,   2,  0,   0,  4
#define SET_0_5_12        15,  3,    1,  1,   2,  0,   0,  4
#define SET_0_5_13        15,  4,    1,  1,   2,  0,   0,  4
#define SET_0_5_14        15,  4,    1,  2,   3,  0,   0,  4
#define SET_0_5_15        15,  5,    1,  2,   3,  0,   0,  4
#define SET_0_5_16        15,  6,    1,  2,   4,  0,   0,  4
#define SET_0_5_17        15,  7,    1,  2,   4,  0,   0,  4
#define SET_0_5_18        15,  7,    1,  2,   4,  1,   0,  4
#define SET_0_5_19        15,  8,    1,  2,   4,  1,   0,  4
#define SET_0_5_21        15,  9,    1,  3,   4,  2,   1,  4
#define SET_0_5_23        15,  10,    1,  3,   4,  2,   1,  4

const sp_release sp_releases[] = {
    {"0.4.1.post7", "E1", SET_0_4_1_post7},
    {"0.4.2", "E1", SET_0_4_1_post7},
    {"0.4.2.post1", "E1", SET_0_4_1_post7},
    {"0.4.2.post2", "E1", SET_0_4_1_post7},
    {"0.4.2.post3", "E1", SET_0_4_1_post7},
    {"0.4.2.post4", "E1", SET_0_4_1_post7},
    {"0.4.3", "E1", SET_0_4_1_post7},
    {"0.4.3.post1", "E1", SET_0_4_1_post7},
    {"0.4.3.post2", "E1", SET_0_4_1_post7},
    {"0.4.3.post3", "E1", SET_0_4_3_post3},
    {"0.4.3.post4", "E1", SET_0_4_3_post3},
    {"0.4.4", "E1", SET_0_4_4},
    {"0.4.4.post1", "E1", SET_0_4_4},
    {"0.4.4.post2", "E1", SET_0_4_4_post2},
    {"0.4.4.post3", "E1", SET_0_4_4_post2},
    {"0.4.4.post4", "E1", SET_0_4_4_post4},
    {"0.4.5", "E1", SET_0_4_4_post4},
    {"0.4.5.post1", "E1", SET_0_4_4_post4},
    {"0.4.5.post2", "E1", SET_0_4_4_post4},
    {"0.4.5.post3", "E1", SET_0_4_4_post4},
    {"0.4.6", "E1", SET_0_4_4_post4},
    {"0.4.6.post1", "E1", SET_0_4_4_post4},
    {"0.4.6.post2", "E1", SET_0_4_4_post4},
    {"0.4.6.post3", "E1n", SET_0_4_6_post3},
    {"0.4.6.post4", "E1n", SET_0_4_6_post3},
    {"0.4.6.post5", "E1n", SET_0_4_6_post3},
    {"0.4.7", "E2", SET_0_4_7},
    {"0.4.7.post1", "E2", SET_0_4_7},
    {"0.4.8", "E2", SET_0_4_7},
    {"0.4.8.post1", "E2", SET_0_4_7},
    {"0.4.9", "E2c", SET_0_4_9},
    {"0.4.9.post1", "E2c", SET_0_4_9},
    {"0.4.9.post2", "E2c", SET_0_4_9},
    {"0.4.9.post3", "E2c", SET_0_4_9},
    {"0.4.9.post4", "E3", SET_0_4_9_post4},
    {"0.4.9.post5", "E3", SET_0_4_9_post4},
    {"0.4.9.post6", "E3", SET_0_4_9_post4},
    {"0.4.10", "E3", SET_0_4_9_post4},
    {"0.4.10.post1", "E3", SET_0_4_9_post4},
    {"0.4.10.post2", "E4", SET_0_4_9_post4},
    {"0.5.0rc0", "E4", SET_0_4_9_post4},
    {"0.5.0rc1", "E4", SET_0_4_9_post4},
    {"0.5.0rc2", "E4", SET_0_4_9_post4},
    {"0.5.1", "E4", SET_0_4_9_post4},
    {"0.5.1.post1", "E4", SET_0_4_9_post4},
    {"0.5.1.post2", "E4", SET_0_4_9_post4},
    {"0.5.1.post3", "E4", SET_0_4_9_post4},
    {"0.5.2rc0", "E4", SET_0_4_9_post4},
    {"0.5.2rc1", "E4", SET_0_4_9_post4},
    {"0.5.2rc2", "E4", SET_0_4_9_post4},
    {"0.5.2", "E4", SET_0_4_9_post4},
    {"0.5.3rc0", "E4", SET_0_4_9_post4},
    {"0.5.3rc2", "E5", SET_0_5_3rc2},
    {"0.5.3", "E5", SET_0_5_3rc2},
    {"0.5.3.post1", "E5", SET_0_5_3rc2},
    {"0.5.3.post2", "E6", SET_0_5_3_post2},
    {"0.5.3.post3", "E6", SET_0_5_3_post2},
    {"0.5.4", "E6", SET_0_5_4},
    {"0.5.4.post1", "E6", SET_0_5_4_post1},
    {"0.5.4.post2", "E6", SET_0_5_4_post1},
    {"0.5.4.post3", "E7", SET_0_5_4_post3},
    {"0.5.5", "E7", SET_0_5_4_post3},
    {"0.5.5.post1", "E7", SET_0_5_4_post3},
    {"0.5.5.post2", "E7", SET_0_5_4_post3},
    {"0.5.5.post3", "E7", SET_0_5_5_post3},
    {"0.5.6", "E7", SET_0_5_5_post3},
    {"0.5.6.post1", "E7", SET_0_5_5_post3},
    {"0.5.6.post2", "E7", SET_0_5_5_post3},
    {"0.5.7", "E8", SET_0_5_7},
    {"0.5.8", "E9", SET_0_5_8},
    {"0.5.8.post1", "E9", SET_0_5_8},
    {"bba2fc4", "E9", SET_bba2fc4},
    {"0be30d4", "E10", SET_0be30d4},
    {"0.5.9", "E10", SET_0be30d4},
    {"0.5.10rc0", "E10", SET_0_5_10rc0},
    {"0.5.10", "E11", SET_0_5_10},
    {"0.5.10.post1", "E11", SET_0_5_10},
    {"0.5.11", "E12", SET_0_5_11},
    {"0.5.12", "E12", SET_0_5_12},
    {"0.5.12.post1", "E12", SET_0_5_12},
    {"0.5.13", "E12", SET_0_5_13},
    {"0.5.13.post1", "E12", SET_0_5_13},
    {"0.5.14", "E13", SET_0_5_14},
    {"0.5.15", "E14", SET_0_5_15},
    {"0.5.15.post1", "E14", SET_0_5_15},
    {"0.5.16", "E15", SET_0_5_16},
    {"0.5.17", "E16", SET_0_5_17},
    {"0.5.18", "E17", SET_0_5_18},
    {"0.5.19", "E18", SET_0_5_19},
    {"0.5.20", "E18", SET_0_5_19},
    {"0.5.21", "E19", SET_0_5_21},
    {"0.5.22", "E19", SET_0_5_21},
    {"0.5.23", "E20", SET_0_5_23},
};
// clang-format on

const size_t sp_release_count = sizeof sp_releases / sizeof *sp_releases;

const sp_release *sp_release_find(const char *name) {
    for (size_t i = 0; i < sp_release_count; i++)
        if (strcmp(sp_releases[i].name, name) == 0) return &sp_releases[i];
    return NULL;
}
