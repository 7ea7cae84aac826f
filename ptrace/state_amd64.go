package ptrace

// injection makes system calls in a stopped task, and afterwards puts it back
// where it was.
//
// It borrows a `syscall` instruction of the program: at the entry of a call the
// one that is being executed, by exchanging the call; elsewhere the one before
// the instruction pointer, or the vDSO's. Signals are blocked meanwhile, so that
// the task can't run off into a handler; they stay pending in the kernel.
// Nothing of the program's memory is written.
//
// In a program that outlives this process it is the relay's instruction, and each
// step leaves the task in a state from which it goes on by itself: before its
// registers are changed, the relay knows them, and before they are its own again,
// so is its signal mask.
type injection struct {
	t       *Task
	saved   Regs
	mask    uint64
	insn    uint64 // address of a syscall instruction
	atEntry bool   // a call is about to be executed
	relay   uint64 // see Task.relay; 0: the program does not outlive this process
	begun   bool   // the task has had other registers than its own
	stopped bool   // job control wanted to stop the task meanwhile
	stopSig bool   // a SIGSTOP was held back
}

// funcCall is a call of a function of the program that the tracer has begun.
type funcCall struct {
	fn     func(*Task, uint64, error)
	saved  Regs
	brk    *breakState // the task stood at a breakpoint
	at     place
	mask   uint64
	set    uintptr // of registers that xstate has
	xstate []byte
	sp     uint64 // the stack pointer behind the return
	back   uint64 // where it returns to
	frame  uint64 // what CallStub puts the task back from; 0: back is CallReturn
}
