package channel

// A role is what a method is to a [Reader]: nearly all of a pushbuffer's words go to methods that say
// nothing about work, and names of the others are looked up once for each class, not for each word.
type role uint8

// Roles of methods whose last value is kept, and behind firstAction of those that do something.
const (
	roleNone role = iota
	roleSemAddressHigh
	roleSemAddressLow
	roleSemPayloadLow
	roleSemPayloadHigh
	roleSetSemaphoreA
	roleSetSemaphoreB
	roleSetSemaphorePayload
	roleOffsetInUpper
	roleOffsetInLower
	roleOffsetOutUpper
	roleOffsetOutLower
	roleOffsetOut
	roleLineLengthIn
	roleLineCount
	roleReportA
	roleReportB
	roleReportC
	roleReportUpper
	roleReportLower
	roleReportPayloadLow
	roleReportPayloadHigh
	rolePCASA

	firstAction
	roleSemExecute = iota - 1
	roleLaunchDMA
	roleInlineData
	roleReportD
	roleReportExecute
	rolePCASB
	rolePCAS2B
	roles
)

// roleOf has the methods that have a role by their names in NVIDIA's headers.
var roleOf = map[string]role{
	"SEM_ADDR_HI": roleSemAddressHigh, "SEM_ADDR_LO": roleSemAddressLow,
	"SEM_PAYLOAD_LO": roleSemPayloadLow, "SEM_PAYLOAD_HI": roleSemPayloadHigh, "SEM_EXECUTE": roleSemExecute,
	"SET_SEMAPHORE_A": roleSetSemaphoreA, "SET_SEMAPHORE_B": roleSetSemaphoreB, "SET_SEMAPHORE_PAYLOAD": roleSetSemaphorePayload,
	"OFFSET_IN_UPPER": roleOffsetInUpper, "OFFSET_IN_LOWER": roleOffsetInLower,
	"OFFSET_OUT_UPPER": roleOffsetOutUpper, "OFFSET_OUT_LOWER": roleOffsetOutLower, "OFFSET_OUT": roleOffsetOut,
	"LINE_LENGTH_IN": roleLineLengthIn, "LINE_COUNT": roleLineCount,
	"LAUNCH_DMA": roleLaunchDMA, "LOAD_INLINE_DATA": roleInlineData,
	"SET_REPORT_SEMAPHORE_A": roleReportA, "SET_REPORT_SEMAPHORE_B": roleReportB, "SET_REPORT_SEMAPHORE_C": roleReportC,
	"SET_REPORT_SEMAPHORE_D":             roleReportD,
	"SET_REPORT_SEMAPHORE_ADDRESS_UPPER": roleReportUpper, "SET_REPORT_SEMAPHORE_ADDRESS_LOWER": roleReportLower,
	"SET_REPORT_SEMAPHORE_PAYLOAD_LOWER": roleReportPayloadLow, "SET_REPORT_SEMAPHORE_PAYLOAD_UPPER": roleReportPayloadHigh,
	"REPORT_SEMAPHORE_EXECUTE": roleReportExecute,
	"SEND_PCAS_A":              rolePCASA, "SEND_SIGNALING_PCAS_B": rolePCASB, "SEND_SIGNALING_PCAS2_B": rolePCAS2B,
}

// methodOffsets is how many methods a header can name.
const methodOffsets = 1 << 12

// setRoles fills in the table of the class's roles, by offset.
func (c *Class) setRoles() {
	for i := range c.roles {
		if m, _ := c.Method(uint16(4 * i)); m != nil {
			c.roles[i] = roleOf[m.Name]
		}
	}
}

// role returns the role of the method at an offset of a subchannel.
func (s *Subchannels) role(subchannel uint8, offset uint16) role {
	class := s.Engine[subchannel&7]
	if offset < firstEngineMethod {
		class = s.Host
	}
	if class == nil {
		return roleNone
	}
	return class.roles[offset/4%methodOffsets]
}
