// Package proof proves programs for kernels safe. A [Unit] is what the programs of one object find:
// their context, their maps, and the helpers with the PTX that each call becomes. A [Program] is one
// that was proven, with what it asks of the sites that it is put at. A [Place] describes such a site
// while code for it is written.
//
// It knows nothing of modules and images, and of the programs beside the one at hand: that is the
// plan's, in package nvattach.
package proof
