"""x86-64 machine code as objdump prints it in Intel's syntax, read into instructions and their
classes.

Lesson 17.
"""

from __future__ import annotations

import itertools
import re
from dataclasses import dataclass

_LABEL = re.compile(r"[0-9a-f]+ <(.+)>:\s*$")
_SECTION = re.compile(r"Disassembly of section (.+):\s*$")
_INSTRUCTION = re.compile(r"\s*([0-9a-f]+):\s+(\S.*?)\s*$")
_PREFIX = re.compile(
    r"^((rep|repe|repz|repne|repnz|lock|bnd|notrack|data16|addr32|[cdefgs]s|\{\w+\})\s+)+"
)
_MEMORY = re.compile(r"(ptr|bcst)\s+(\w\w:)?(\[|0x)", re.I)
_CONSTANT = re.compile(r"(ptr|bcst)\s+\[rip", re.I)
_FMA = re.compile(r"v(fmadd|fmsub|fnmadd|fnmsub|fmaddsub|fmsubadd)\d*(ps|pd|ph|ss|sd|sh)$")
_MULTIPLY = re.compile(r"v?mul(ps|pd|ph|ss|sd|sh)$")
_ADD = re.compile(r"v?(add|sub)(ps|pd|ph|ss|sd|sh)$")
_BRANCH = re.compile(r"j\w+$|call\w?$|ret\w?$|loop\w*$")
_END = re.compile(r"jmp\w?|ret\w?")
_TARGET = re.compile(r"(?:0x)?([0-9a-f]+)")
_NO_ACCESS = re.compile(r"(nop|lea|prefetch|clflush|clwb|cldemote|endbr)")
_READS_FIRST = re.compile(
    r"(cmp(?!xchg)|test|bt$|v?u?comis|vtest|vptest|ptest|push|call|jmp|mul$|imul$|div$|idiv$|"
    r"fi?(ld|add|sub|mul|div|com)|fucom|frstor|fxrstor|xrstor|v?ldmxcsr)"
)
_WRITES_ONLY = re.compile(
    r"(vp?mov|mov|kmov|stos|v?p?extr|vextract|set|v?stmxcsr|fn?i?st|fn?save|fxsave|xsave|pop(?!cnt)|vcvtps2ph|"
    r"vp?compress|v?p?scatter|v?p?maskmov)"
)
_RUNTIME = re.compile(
    r"_init|_fini|_start|deregister_tm_clones|register_tm_clones|__do_global_dtors_aux|frame_dummy|"
    r"\.plt.*|.*@plt|.*\.plt.*|_dl_relocate_static_pie"
)
_VECTOR = re.compile(r"\b([xyz])mm\d+")
_VECTOR_BITS = {"x": 128, "y": 256, "z": 512}


@dataclass(frozen=True)
class HostInstruction:
    """One instruction: where it stands, its mnemonic without prefixes, its operands."""

    offset: int
    mnemonic: str
    operands: tuple[str, ...]

    @property
    def form(self) -> tuple[str, str] | None:
        """``("fma" | "multiply" | "add", "packed" | "scalar")`` of floating-point arithmetic, else
        None.
        """
        for name, pattern in (("fma", _FMA), ("multiply", _MULTIPLY), ("add", _ADD)):
            if match := pattern.fullmatch(self.mnemonic):
                return name, "packed" if match[match.lastindex or 1].startswith("p") else "scalar"
        return None

    @property
    def vector_bits(self) -> int:
        """The width of its widest vector register, 0 without one."""
        return max(
            (_VECTOR_BITS[match[1]] for text in self.operands for match in _VECTOR.finditer(text)),
            default=0,
        )

    @property
    def is_branch(self) -> bool:
        """True for jumps, calls and returns."""
        return bool(_BRANCH.fullmatch(self.mnemonic))

    @property
    def ends(self) -> bool:
        """True when the instruction behind it is not the next to run: a jump without a condition, a
        return.
        """
        return bool(_END.fullmatch(self.mnemonic))

    @property
    def target(self) -> int | None:
        """The offset that a branch names, None where it names none or is no branch."""
        match = self.is_branch and self.operands and _TARGET.fullmatch(self.operands[0])
        return int(match[1], 16) if match else None

    @property
    def loads(self) -> bool:
        """True when it reads memory that it names; push, pop, call and ret touch the stack without
        naming it.
        """
        return any(self._memory[1:]) or (self._memory[:1] == (True,) and self._reads_first)

    @property
    def loads_constant(self) -> bool:
        """True when it reads the program's own data, at an address relative to the instruction."""
        return self.loads and any(_CONSTANT.search(operand) for operand in self.operands)

    @property
    def stores(self) -> bool:
        """True when it writes memory that it names."""
        return self._memory[:1] == (True,) and not _READS_FIRST.match(self.mnemonic)

    @property
    def _memory(self) -> tuple[bool, ...]:
        if _NO_ACCESS.match(self.mnemonic):
            return ()
        return tuple(bool(_MEMORY.search(operand)) for operand in self.operands)

    @property
    def _reads_first(self) -> bool:
        return bool(_READS_FIRST.match(self.mnemonic)) or not _WRITES_ONLY.match(self.mnemonic)


@dataclass(frozen=True)
class HostFunction:
    """A function: its instructions, the filler behind its last one included."""

    name: str
    instructions: tuple[HostInstruction, ...]

    @property
    def padding(self) -> int:
        """How many instructions at the end only fill up to the next function's alignment."""
        return len(list(itertools.takewhile(_is_filler, reversed(self.instructions))))

    def without_data(self) -> HostFunction:
        """Return the function up to the last instruction that its jumps reach from the first one.

        Behind it stand constants, which a listing shows as instructions. A jump to an address that
        is computed may reach any: then nothing is left out.
        """
        indices = {instruction.offset: index for index, instruction in enumerate(self.instructions)}
        reachable, waiting = set(), [0]
        while waiting:
            index = waiting.pop()
            if index in reachable or index >= len(self.instructions):
                continue
            reachable.add(index)
            instruction = self.instructions[index]
            target = instruction.target
            if instruction.mnemonic.startswith("jmp") and target is None:
                return self
            if target in indices:
                waiting.append(indices[target])
            if not instruction.ends:
                waiting.append(index + 1)
        return HostFunction(self.name, self.instructions[: max(reachable, default=-1) + 1])

    def text(self) -> str:
        """Return the listing: a line an instruction with its offset from the function's start."""
        start = self.instructions[0].offset if self.instructions else 0
        lines = [
            f"  {instruction.offset - start:04x}  {instruction.mnemonic} "
            f"{', '.join(instruction.operands)}".rstrip()
            for instruction in self.instructions
        ]
        return "\n".join([f"{self.name}:", *lines])


def parse(listing: str) -> dict[str, HostFunction]:
    """Return the functions in what ``objdump -d --no-show-raw-insn -M intel`` printed, the C
    runtime's own left out.
    """
    functions: dict[str, list[HostInstruction]] = {}
    name, in_text = "", True
    for line in listing.splitlines():
        if section := _SECTION.match(line):
            name, in_text = "", "text" in section[1]
        elif label := _LABEL.match(line):
            name = label[1] if in_text and not _RUNTIME.fullmatch(label[1]) else ""
            if name:
                functions[name] = []
        elif name and (instruction := _INSTRUCTION.match(line)):
            functions[name].append(_instruction(int(instruction[1], 16), instruction[2]))
    return {
        name: HostFunction(name, tuple(instructions)) for name, instructions in functions.items()
    }


def _instruction(offset: int, text: str) -> HostInstruction:
    text = re.split(r"\s+[#<]", text, maxsplit=1)[0]
    mnemonic, *rest = _PREFIX.sub("", text, count=1).split(maxsplit=1)
    operands = tuple(part.strip() for part in "".join(rest).split(",") if part.strip())
    return HostInstruction(offset, mnemonic, operands)


def _is_filler(instruction: HostInstruction) -> bool:
    is_self_exchange = instruction.mnemonic == "xchg" and len(set(instruction.operands)) == 1
    return instruction.mnemonic in ("nop", "nopw", "nopl", "int3") or is_self_exchange
