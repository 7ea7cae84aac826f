package agent

// program is the agent's code.
type program struct {
	code []byte

	callEntry, hookEntry, returnEntry uint64
	breakEntry, breakStubs            uint64
	probeEntry, probeWatch            uint64
	probeReturn                       uint64
	copyInsn, tpInsn                  uint64
	ownCheck, ownInsn, ownNot         uint64
	bellLoad, bellInsn                uint64
}
