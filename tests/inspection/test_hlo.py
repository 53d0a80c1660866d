import pytest

from gshard_nmt.inspection import hlo

TEXT = """
HloModule jit_call, is_scheduled=true

%fused (param_0.1: f32[8,16], param_1.2: f32[16,4]) -> f32[8,4] {
  %param_0.1 = f32[8,16]{1,0:T(8,128)} parameter(0)
  %param_1.2 = f32[16,4]{1,0:T(8,128)} parameter(1)
  ROOT %dot.1 = f32[8,4]{1,0:T(8,128)} dot(%param_0.1, %param_1.2), metadata={op_name="jit(call)/einsum"}
}

%condition (state.1: (s32[], f32[8,4])) -> pred[] {
  %state.1 = (s32[]{:T(256)}, f32[8,4]{1,0:T(8,128)}) parameter(0)
  %bound = s32[]{:T(256)} constant(0)
  %counter = s32[]{:T(256)} get-tuple-element(%state.1), index=0
  ROOT %greater = pred[] compare(%counter, %bound), direction=GT
}

%body (state.2: (s32[], f32[8,4])) -> (s32[], f32[8,4]) {
  %state.2 = (s32[]{:T(256)}, f32[8,4]{1,0:T(8,128)}) parameter(0)
  %n = s32[]{:T(256)} get-tuple-element(%state.2), index=0
  %one = s32[] constant(1)
  %less = s32[]{:T(256)} subtract(%n, %one)
  %x = f32[8,4]{1,0:T(8,128)} get-tuple-element(%state.2), index=1
  %double = f32[8,4]{1,0:T(8,128)} add(%x, %x), backend_config={"estimated_cycles":"70"}
  ROOT %next = (s32[]{:T(256)}, f32[8,4]{1,0:T(8,128)}) tuple(%less, %double)
}

ENTRY %main (a: f32[8,16], b: f32[16,4]) -> f32[8,4] {
  %a = f32[8,16]{1,0:T(8,128)} parameter(0), sharding={replicated}, metadata={op_name="arguments[0]"}
  %b = f32[16,4]{1,0:T(8,128)} parameter(1)
  %product = f32[8,4]{1,0:T(8,128)} fusion(%a, %b), kind=kOutput, calls=%fused
  %nine = s32[]{:T(256)} constant(9)
  %start = (s32[]{:T(256)}, f32[8,4]{1,0:T(8,128)}) tuple(%nine, %product)
  %loop = (s32[]{:T(256)}, f32[8,4]{1,0:T(8,128)}) while(%start), condition=%condition, body=%body
  ROOT %out = f32[8,4]{1,0:T(8,128)} get-tuple-element(%loop), index=1
}
"""


@pytest.fixture(scope="module")
def module():
    return hlo.parse(TEXT)


def test_every_computation_and_instruction_is_read(module):
    assert module.entry == "main"
    assert {name: len(body) for name, body in module.computations.items()} == {
        "fused": 3,
        "condition": 4,
        "body": 7,
        "main": 7,
    }
    assert module.num_instructions == 21
    product = module.by_name["product"]
    assert (product.opcode, product.operands, product.calls) == ("fusion", ("a", "b"), ("fused",))
    assert module.by_name["b"].parameter_number == 1
    assert module.by_name["out"].is_root


def test_an_operation_keeps_its_name_and_its_estimate(module):
    assert module.by_name["dot.1"].op_name == "jit(call)/einsum"
    assert module.by_name["product"].op_name == ""
    assert module.by_name["double"].cycles == 70
    assert module.by_name["product"].cycles is None


def test_the_trip_count_of_a_loop_that_counts_down_is_read_from_its_counter(module):
    assert module.trip_count(module.by_name["loop"]) == 9
    times = {instruction.name: n for instruction, n in module.executed()}
    assert times["double"] == 9
    assert times["product"] == 1
    assert "dot.1" not in times  # inside a fusion, which is one instruction


UNROLLED = {"%one = s32[] constant(1)": "%one = s32[] constant(2)"}
KNOWN = {"body=%body": 'body=%body, backend_config={"known_trip_count":{"n":"4"}}'}
COMPUTED_START = {
    "%nine = s32[]{:T(256)} constant(9)": "%nine = s32[] bitcast(%a)",
    "direction=GT": "direction=LT",
    "%bound = s32[]{:T(256)} constant(0)": "%bound = s32[] constant(8)",
}


@pytest.mark.parametrize(
    ("changes", "trips"),
    [
        pytest.param(UNROLLED, 5, id="9, 7, 5, 3, 1"),
        pytest.param(KNOWN, 4, id="a known trip count is used"),
        pytest.param(COMPUTED_START, 8, id="a computed start counts as 0"),
    ],
)
def test_the_trip_count_of_a_loop(changes, trips):
    text = TEXT
    for old, new in changes.items():
        text = text.replace(old, new)
    module = hlo.parse(text)
    assert module.trip_count(module.by_name["loop"]) == trips


@pytest.mark.parametrize(
    ("shape", "arrays"),
    [
        ("f32[]", [("f32[]", 4, 4)]),
        ("f32[2048,8]{0,1:T(8,128)}", [("f32[2048,8]", 65536, 65536)]),
        # 3 x 5 elements lie in one tile of 8 x 128.
        ("bf16[3,5]{1,0:T(8,128)(2,1)}", [("bf16[3,5]", 30, 2048)]),
        ("(s32[4]{0:T(128)}, pred[2,2])", [("s32[4]", 16, 512), ("pred[2,2]", 4, 4)]),
    ],
)
def test_a_tpu_rounds_arrays_up_to_its_tiles(shape, arrays):
    parsed = hlo.parse_shape(shape)
    assert [(str(array), array.nbytes, array.allocated) for array in parsed] == arrays
