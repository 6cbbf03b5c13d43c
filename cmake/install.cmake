# cmake --install: the program, the library with its header and pkg-config file, the demo model.
#
# The folders are found from one another, so that an installed tree can be moved as a whole; the
# program knows where the demo model lies from where it is itself (src/cli).
file(RELATIVE_PATH M2_PREFIX_FROM_PC /prefix/${CMAKE_INSTALL_LIBDIR}/pkgconfig /prefix)

install(TARGETS magi2 RUNTIME DESTINATION ${CMAKE_INSTALL_BINDIR})
install(FILES include/magi2.h DESTINATION ${CMAKE_INSTALL_INCLUDEDIR})
install(DIRECTORY demo DESTINATION ${CMAKE_INSTALL_DATADIR}/magi2)
install(FILES LICENSE NOTICE DESTINATION ${CMAKE_INSTALL_DOCDIR})

# Programs with the system's libraries linked in are carried alone: those are not made for sharing.
if(MAGI2_STATIC_LIBRARIES)
    return()
endif()

# One library for other programs.  It shows the functions of magi2.h and nothing else.
add_library(magi2_shared SHARED src/magi2.c)
target_link_libraries(magi2_shared PRIVATE m2_pipeline)
target_link_options(magi2_shared PRIVATE -Wl,--exclude-libs,ALL)
set_target_properties(magi2_shared PROPERTIES OUTPUT_NAME magi2 VERSION ${PROJECT_VERSION}
                      SOVERSION ${PROJECT_VERSION_MAJOR})
install(TARGETS magi2_shared LIBRARY DESTINATION ${CMAKE_INSTALL_LIBDIR})
configure_file(cmake/magi2.pc.in magi2.pc @ONLY)
install(FILES ${PROJECT_BINARY_DIR}/magi2.pc DESTINATION ${CMAKE_INSTALL_LIBDIR}/pkgconfig)
