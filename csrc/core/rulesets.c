/* The rulesets of SGLang, one an era, oldest first. Read by dispatch.c; conform holds each against SGLang's own code, state by state.
 * Invariant: rows stand in the order in which SGLang asks; the last row of a block has neither need nor forbid. */
#include "ruleset.h"

#define B(id)    SP_BIT(id)
#define CUSTOM3  (B(CUSTOM_PRESENT) | B(CUSTOM_ENABLED) | B(CUSTOM_ACCEPTS))
#define QUICK3   (B(QUICK_PRESENT) | B(QUICK_ENABLED) | B(QUICK_ACCEPTS))
#define MSCCLPP3 (B(MSCCLPP_PRESENT) | B(MSCCLPP_ENABLED) | B(MSCCLPP_ACCEPTS))
#define SYMM3    (B(SYMM_PRESENT) | B(SYMM_ENABLED) | B(SYMM_ACCEPTS))
#define PCIE3    (B(PCIE_PRESENT) | B(PCIE_ENABLED) | B(PCIE_ACCEPTS))
#define PYNCCL2  (B(PYNCCL_PRESENT) | B(PYNCCL_ENABLED))
#define BYPASS   (B(PYNCCL_PRESENT) | B(SYMMETRIC_MEMORY))
#define OTHERS   (B(CUSTOM_PRESENT) | B(QUICK_PRESENT) | B(MSCCLPP_PRESENT)) /* what the first assertions of the op know */
#define ANYBODY  (OTHERS | B(SYMM_PRESENT) | B(PYNCCL_PRESENT))

#define PATH(rule, path, op, flags, need, forbid) \
    { SP_RULE_##rule, SP_PATH_##path, SP_OP_##op, flags, 0, need, forbid }
#define JUMP(rule, block, op, flags, need, forbid) \
    { SP_RULE_##rule, SP_BLOCK_##block, SP_OP_##op, SP_ROW_JUMP | (flags), 0, need, forbid }
#define RAISE(exc, need, forbid) \
    { SP_RULE_NO_RULE, SP_PATH_RAISES, SP_OP_DIRECT, 0, SP_EXC_##exc, need, forbid }
#define ASK(rule, need) \
    { SP_RULE_##rule, 0, 0, SP_ROW_ASK, 0, need, 0 }

// clang-format off

/* Rows that many eras share. */
#define ONE_RANK           PATH(WORLD_OF_ONE, NONE, DIRECT, 0, 0, B(RANKS))
#define EARLY_CPU_IPEX     PATH(CPU, TORCH_DISTRIBUTED, DIRECT, 0, B(CPU), 0)
#define EARLY_CPU_SHM      PATH(CPU, CPU_SHM, DIRECT, 0, B(CPU) | B(CPU_SHM), 0), PATH(CPU, TORCH_DISTRIBUTED, DIRECT, 0, B(CPU), 0)
#define EARLY_HPU          PATH(HPU, TORCH_DISTRIBUTED, DIRECT, 0, B(HPU), 0)
#define EARLY_XPU          PATH(XPU, TORCH_DISTRIBUTED, DIRECT, 0, B(XPU), 0)
#define EARLY_XPU_OP       JUMP(XPU, IN_PLACE, IN_PLACE, 0, B(XPU), 0)
#define EARLY_NPU          PATH(NPU, TORCH_DISTRIBUTED, DIRECT, 0, B(NPU), 0)
#define DEVICES            EARLY_CPU_SHM, EARLY_HPU, EARLY_XPU, EARLY_NPU
#define DEVICES_XPU_OP     EARLY_CPU_SHM, EARLY_HPU, EARLY_XPU_OP, EARLY_NPU
#define AMD_ONE_STAGE      PATH(AMD_DETERMINISTIC, CUSTOM, DIRECT, SP_ROW_NEW, B(AMD_DETERMINISTIC) | B(CUSTOM_PRESENT), B(CPU))
#define SYMM_MEM(forbid)   PATH(SYMM_MEM_BYPASS, PYNCCL_IN_PLACE, DIRECT, 0, BYPASS, forbid)
#define TO_CUSTOM(forbid)  JUMP(CUSTOM, OUT_CUSTOM, OUT_OF_PLACE, 0, CUSTOM3, forbid)
#define TO_QUICK           JUMP(QUICK, OUT_QUICK, OUT_OF_PLACE, 0, QUICK3, 0)
#define TO_MSCCLPP(flags)  JUMP(MSCCLPP, OUT_MSCCLPP, OUT_OF_PLACE, flags, MSCCLPP3, 0)
#define TO_AGAIN JUMP(MSCCLPP, OUT_CUSTOM, OUT_OF_PLACE, 0, MSCCLPP3, 0)
#define TO_SYMM            JUMP(TORCH_SYMM_MEM, OUT_SYMM, OUT_OF_PLACE, 0, SYMM3, 0)
#define TO_PCIE            JUMP(PCIE_IPC, OUT_PCIE, OUT_OF_PLACE, 0, PCIE3, B(MSCCLPP_ACCEPTS))
#define TO_PIECEWISE(need) JUMP(PIECEWISE_PYNCCL, OUT_PYNCCL, OUT_OF_PLACE, 0, B(PIECEWISE) | (need), 0)
#define TO_IN_PLACE        JUMP(NO_RULE, IN_PLACE, IN_PLACE, 0, 0, 0)
#define FLASHINFER(need)   PATH(FLASHINFER, FLASHINFER, OUT_OF_PLACE, SP_ROW_NEW, B(FLASHINFER) | (need), 0)
#define COMPILED_IN_PLACE  JUMP(NO_RULE, IN_PLACE, IN_PLACE, 0, B(COMPILING), ANYBODY)
#define COMPILED_AUTO      JUMP(NO_RULE, AUTO, OUT_OF_PLACE, 0, B(COMPILING), 0)
#define ASK_MSCCLPP ASK(MSCCLPP, B(MSCCLPP_ACCEPTS))
#define ASK_CUSTOM ASK(CUSTOM, B(CUSTOM_ACCEPTS))
#define ASK_CUSTOM_MULTINODE ASK(CUSTOM, B(CUSTOM_MULTINODE) | B(CUSTOM_ACCEPTS))

typedef const sp_row rows[];

/* Carrying out, out of place. */
static rows out_custom = {PATH(CUSTOM, CUSTOM, OUT_OF_PLACE, SP_ROW_NEW, 0, 0)};
static rows out_quick = {PATH(QUICK, QUICK, OUT_OF_PLACE, SP_ROW_NEW, 0, 0)};
static rows out_mscclpp_new = {PATH(MSCCLPP, MSCCLPP, OUT_OF_PLACE, SP_ROW_NEW, 0, 0)};
static rows out_mscclpp = {PATH(MSCCLPP, MSCCLPP, OUT_OF_PLACE, 0, 0, 0)};
static rows out_symm_asserts = {RAISE(ASSERTION_ERROR, 0, OTHERS), PATH(TORCH_SYMM_MEM, TORCH_SYMM_MEM, OUT_OF_PLACE,
    SP_ROW_NEW, 0, 0)};
static rows out_symm = {PATH(TORCH_SYMM_MEM, TORCH_SYMM_MEM, OUT_OF_PLACE, SP_ROW_NEW, 0, 0)};
static rows out_pynccl_raises = {RAISE(ASSERTION_ERROR, 0, ANYBODY), RAISE(ATTRIBUTE_ERROR, 0, B(PYNCCL_PRESENT)),
    PATH(PIECEWISE_PYNCCL, PYNCCL_OUT_OF_PLACE, OUT_OF_PLACE, SP_ROW_NEW, 0, 0)};
static rows out_pynccl = {PATH(PIECEWISE_PYNCCL, PYNCCL_OUT_OF_PLACE, OUT_OF_PLACE, SP_ROW_NEW, 0, 0)};
static rows out_pcie = {RAISE(ASSERTION_ERROR, 0, ANYBODY), PATH(PCIE_IPC, PCIE_IPC, OUT_OF_PLACE, SP_ROW_NEW, 0, 0)};
/* E2 decides again: whichever communicator accepted, an enabled custom all-reduce is used, and asserts when it had declined. */
static rows out_again = {PATH(CUSTOM, CUSTOM, OUT_OF_PLACE, SP_ROW_NEW, CUSTOM3, 0),
    RAISE(ASSERTION_ERROR, B(CUSTOM_PRESENT) | B(CUSTOM_ENABLED), 0), PATH(MSCCLPP, MSCCLPP, OUT_OF_PLACE, SP_ROW_NEW, 0, 0)};

/* Carrying out, in place. */
#define PYNCCL_FIRST PATH(IN_PLACE_PYNCCL, PYNCCL_IN_PLACE, IN_PLACE, 0, PYNCCL2, 0)
#define TORCH_LAST   PATH(IN_PLACE_TORCH, TORCH_DISTRIBUTED, IN_PLACE, 0, 0, 0)
static rows in_place = {PYNCCL_FIRST, TORCH_LAST};
static rows in_place_lossy = {PYNCCL_FIRST, PATH(IN_PLACE_TORCH_SYMM_MEM, TORCH_SYMM_MEM, IN_PLACE, SP_ROW_LOST,
    B(SYMM_PRESENT) | B(SYMM_ENABLED), 0), TORCH_LAST};
static rows in_place_symm = {PYNCCL_FIRST, PATH(IN_PLACE_TORCH_SYMM_MEM, TORCH_SYMM_MEM, IN_PLACE, 0, SYMM3, 0), TORCH_LAST};

/* Choosing. */
static rows select_e1 = {ONE_RANK, EARLY_CPU_IPEX, EARLY_HPU, EARLY_XPU, TO_CUSTOM(0), TO_IN_PLACE};
static rows select_e1n = {ONE_RANK, EARLY_CPU_IPEX, EARLY_HPU, EARLY_XPU, EARLY_NPU, TO_CUSTOM(0), TO_IN_PLACE};
static rows select_e2 = {ONE_RANK, EARLY_CPU_IPEX, EARLY_HPU, EARLY_XPU, EARLY_NPU, TO_CUSTOM(0), TO_AGAIN,
    TO_IN_PLACE};
static rows select_e2c = {ONE_RANK, DEVICES, TO_CUSTOM(0), TO_AGAIN, TO_IN_PLACE};
static rows select_e3 = {ONE_RANK, DEVICES, TO_QUICK, TO_CUSTOM(0), TO_MSCCLPP(0), TO_IN_PLACE};
static rows select_e4 = {ONE_RANK, DEVICES, SYMM_MEM(0), TO_QUICK, TO_CUSTOM(0), TO_MSCCLPP(0), TO_IN_PLACE};
static rows select_e5 = {ONE_RANK, DEVICES, SYMM_MEM(0), TO_CUSTOM(0), TO_QUICK, TO_MSCCLPP(0), TO_SYMM, TO_IN_PLACE};
static rows select_e8 = {ONE_RANK, AMD_ONE_STAGE, DEVICES, SYMM_MEM(0), TO_CUSTOM(0), TO_QUICK, TO_MSCCLPP(0), TO_SYMM,
    TO_IN_PLACE};
static rows select_e10 = {ONE_RANK, AMD_ONE_STAGE, DEVICES, SYMM_MEM(0), TO_CUSTOM(0), TO_QUICK, TO_MSCCLPP(0), TO_SYMM,
    TO_PIECEWISE(0), TO_IN_PLACE};
static rows select_e11 = {ONE_RANK, DEVICES, SYMM_MEM(0), TO_CUSTOM(0), TO_QUICK, TO_MSCCLPP(0), TO_SYMM, TO_PIECEWISE(0),
    TO_IN_PLACE};
static rows select_e12 = {ONE_RANK, DEVICES, SYMM_MEM(0), TO_CUSTOM(0), TO_QUICK, TO_MSCCLPP(0), TO_SYMM,
    TO_PIECEWISE(B(PYNCCL_PRESENT)), TO_IN_PLACE};

/* From E13 on MSCCL++ is asked before everything, and what it accepts nobody else gets, but quick reduce. */
#define CHOICES TO_CUSTOM(B(MSCCLPP_ACCEPTS)), TO_QUICK, TO_MSCCLPP(0), TO_SYMM, TO_PIECEWISE(B(PYNCCL_PRESENT)), TO_IN_PLACE
#define PCIE_CHOICES \
    TO_CUSTOM(B(MSCCLPP_ACCEPTS)), TO_PCIE, TO_QUICK, TO_MSCCLPP(0), TO_SYMM, TO_PIECEWISE(B(PYNCCL_PRESENT)), TO_IN_PLACE
#define COMPILED        COMPILED_IN_PLACE, COMPILED_AUTO
#define SYMM_MEM_YIELDS SYMM_MEM(B(MSCCLPP_ACCEPTS) | B(CUSTOM_ACCEPTS))
static rows select_e13 = {ONE_RANK, DEVICES, ASK_MSCCLPP, SYMM_MEM(B(MSCCLPP_ACCEPTS)), CHOICES};
static rows select_e14 = {ONE_RANK, DEVICES_XPU_OP, ASK_MSCCLPP, SYMM_MEM(B(MSCCLPP_ACCEPTS)), CHOICES};
static rows select_e15 = {ONE_RANK, DEVICES_XPU_OP, COMPILED, ASK_MSCCLPP, SYMM_MEM(B(MSCCLPP_ACCEPTS)), CHOICES};
static rows select_e16 = {ONE_RANK, DEVICES_XPU_OP, COMPILED, ASK_MSCCLPP, ASK_CUSTOM_MULTINODE,
    SYMM_MEM(B(MSCCLPP_ACCEPTS) | B(CUSTOM_MULTINODE)), SYMM_MEM_YIELDS, CHOICES};
static rows select_e17 = {ONE_RANK, DEVICES_XPU_OP, FLASHINFER(B(COMPILING)), COMPILED, ASK_MSCCLPP, ASK_CUSTOM_MULTINODE,
    SYMM_MEM(B(MSCCLPP_ACCEPTS) | B(CUSTOM_MULTINODE)), SYMM_MEM_YIELDS, FLASHINFER(0), CHOICES};
static rows select_e18 = {ONE_RANK, DEVICES_XPU_OP, FLASHINFER(B(COMPILING)), COMPILED, ASK_MSCCLPP, ASK_CUSTOM, SYMM_MEM_YIELDS,
    FLASHINFER(0), CHOICES};
static rows select_e19 = {ONE_RANK, DEVICES_XPU_OP, FLASHINFER(B(COMPILING)), COMPILED, ASK_MSCCLPP, ASK_CUSTOM, SYMM_MEM_YIELDS,
    FLASHINFER(0), PCIE_CHOICES};
static rows select_e20 = {ONE_RANK, EARLY_CPU_SHM, EARLY_HPU, EARLY_XPU_OP, FLASHINFER(B(COMPILING)), COMPILED, ASK_MSCCLPP, ASK_CUSTOM,
    SYMM_MEM_YIELDS, FLASHINFER(0), PCIE_CHOICES};

/* "auto": chosen again when the op runs. The in-place op never gets the caller's tensor. */
#define AUTO_LAST                                                                              \
    TO_QUICK, TO_MSCCLPP(SP_ROW_CLONE | SP_ROW_NEW), TO_SYMM, TO_PIECEWISE(B(PYNCCL_PRESENT)), \
        JUMP(AUTO_PYNCCL, OUT_PYNCCL, OUT_OF_PLACE, 0, B(PYNCCL_PRESENT), 0),                  \
        JUMP(AUTO_CLONE, IN_PLACE, OUT_OF_PLACE, SP_ROW_CLONE | SP_ROW_NEW, 0, 0)
static rows auto_e15 = {ASK_MSCCLPP, TO_CUSTOM(B(MSCCLPP_ACCEPTS)), AUTO_LAST};
static rows auto_e19 = {ASK_MSCCLPP, TO_CUSTOM(B(MSCCLPP_ACCEPTS)), TO_PCIE, AUTO_LAST};

/* The carrying out that most eras share; later designators override. */
#define OUT_COMMON [SP_BLOCK_OUT_CUSTOM] = out_custom, [SP_BLOCK_OUT_QUICK] = out_quick, [SP_BLOCK_OUT_MSCCLPP] = out_mscclpp_new
#define OUT_E13                                                                                                 \
    [SP_BLOCK_OUT_CUSTOM] = out_custom, [SP_BLOCK_OUT_QUICK] = out_quick, [SP_BLOCK_OUT_MSCCLPP] = out_mscclpp, \
    [SP_BLOCK_OUT_SYMM] = out_symm, [SP_BLOCK_OUT_PYNCCL] = out_pynccl, [SP_BLOCK_IN_PLACE] = in_place_symm
#define SELECT(rows)   [SP_BLOCK_SELECT] = rows
#define IN_PLACE(rows) [SP_BLOCK_IN_PLACE] = rows

static const sp_ruleset rulesets_table[] = {
    {"E1", "custom, else in place", {SELECT(select_e1), [SP_BLOCK_OUT_CUSTOM] = out_custom, IN_PLACE(in_place)}, 0},
    {"E1n", "+ NPU early return", {SELECT(select_e1n), [SP_BLOCK_OUT_CUSTOM] = out_custom, IN_PLACE(in_place)}, 0},
    {"E2", "+ mscclpp; the op decides again", {SELECT(select_e2), [SP_BLOCK_OUT_CUSTOM] = out_again, IN_PLACE(in_place)}, 0},
    {"E2c", "CPU by shared memory", {SELECT(select_e2c), [SP_BLOCK_OUT_CUSTOM] = out_again, IN_PLACE(in_place)}, 0},
    {"E3", "a method by name: quick, custom, mscclpp", {SELECT(select_e3), OUT_COMMON, IN_PLACE(in_place)}, 0},
    {"E4", "+ bypass for tagged tensors", {SELECT(select_e4), OUT_COMMON, IN_PLACE(in_place)}, SP_READS_TAG},
    {"E5",
     "custom before quick; + torch symmetric memory",
     {SELECT(select_e5), OUT_COMMON, [SP_BLOCK_OUT_SYMM] = out_symm_asserts, IN_PLACE(in_place)},
     SP_READS_TAG},
    {"E6",
     "in place may take torch symmetric memory, and loses its result",
     {SELECT(select_e5), OUT_COMMON, [SP_BLOCK_OUT_SYMM] = out_symm_asserts, IN_PLACE(in_place_lossy)},
     SP_READS_TAG},
    {"E7",
     "bypass by the server's flag",
     {SELECT(select_e5), OUT_COMMON, [SP_BLOCK_OUT_SYMM] = out_symm_asserts, IN_PLACE(in_place_lossy)},
     0},
    {"E8",
     "+ AMD deterministic branch; the assertion knows torch symmetric memory",
     {SELECT(select_e8), OUT_COMMON, [SP_BLOCK_OUT_SYMM] = out_symm, IN_PLACE(in_place_lossy)},
     B(AMD_DETERMINISTIC)},
    {"E9",
     "plain functions as ops",
     {SELECT(select_e8), OUT_COMMON, [SP_BLOCK_OUT_SYMM] = out_symm, IN_PLACE(in_place_lossy)},
     B(AMD_DETERMINISTIC)},
    {"E10",
     "+ piecewise graph: pynccl out of place",
     {SELECT(select_e10), OUT_COMMON, [SP_BLOCK_OUT_SYMM] = out_symm, [SP_BLOCK_OUT_PYNCCL] = out_pynccl_raises,
      IN_PLACE(in_place_lossy)},
     B(AMD_DETERMINISTIC)},
    {"E11",
     "AMD branch moved into custom all-reduce",
     {SELECT(select_e11), OUT_COMMON, [SP_BLOCK_OUT_SYMM] = out_symm, [SP_BLOCK_OUT_PYNCCL] = out_pynccl_raises,
      IN_PLACE(in_place_lossy)},
     0},
    {"E12",
     "the piecewise rule needs pynccl",
     {SELECT(select_e12), OUT_COMMON, [SP_BLOCK_OUT_SYMM] = out_symm, [SP_BLOCK_OUT_PYNCCL] = out_pynccl,
      IN_PLACE(in_place_lossy)},
     0},
    {"E13", "mscclpp asked first, in place; the in-place branch keeps its result", {SELECT(select_e13), OUT_E13}, 0},
    {"E14", "XPU through the in-place op", {SELECT(select_e14), OUT_E13}, 0},
    {"E15", "under Dynamo the method is chosen when the op runs", {SELECT(select_e15), [SP_BLOCK_AUTO] = auto_e15, OUT_E13}, 0},
    {"E16",
     "the bypass yields to custom in multi-node mode",
     {SELECT(select_e16), [SP_BLOCK_AUTO] = auto_e15, OUT_E13},
     B(CUSTOM_MULTINODE)},
    {"E17", "+ FlashInfer all-reduce", {SELECT(select_e17), [SP_BLOCK_AUTO] = auto_e15, OUT_E13}, B(CUSTOM_MULTINODE)},
    {"E18", "the bypass always yields to custom", {SELECT(select_e18), [SP_BLOCK_AUTO] = auto_e15, OUT_E13}, 0},
    {"E19",
     "+ FlashInfer PCIe-IPC after custom",
     {SELECT(select_e19), [SP_BLOCK_AUTO] = auto_e19, [SP_BLOCK_OUT_PCIE] = out_pcie, OUT_E13},
     B(PCIE_PRESENT)},
    {"E20",
     "NPU early return gone",
     {SELECT(select_e20), [SP_BLOCK_AUTO] = auto_e19, [SP_BLOCK_OUT_PCIE] = out_pcie, OUT_E13},
     B(PCIE_PRESENT)},
};

// clang-format on

const sp_ruleset *const sp_rulesets = rulesets_table;
const size_t sp_ruleset_count = sizeof rulesets_table / sizeof *rulesets_table;
